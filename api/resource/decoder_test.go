package resource

import (
	"fmt"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shepherd-project/shepherd/fsm"
)

func configMap(t testing.TB, i int, revision uint64) *fsm.Object {
	t.Helper()
	return stored(t, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c-", i), Namespace: "default", UID: types.UID(fmt.Sprint("uid-", i))},
		Data:       map[string]string{"number": fmt.Sprint(i)},
	}, revision)
}

func TestDecoderSharesByVersion(t *testing.T) {
	d := NewDecoder(1 << 20)
	one, two := configMap(t, 1, 10), configMap(t, 1, 11)
	a, err := d.Decode(one)
	if err != nil {
		t.Fatal(err)
	}
	b, err := d.Decode(one)
	if err != nil {
		t.Fatal(err)
	}
	if a != b {
		t.Error("the same version was decoded twice")
	}
	c, err := d.Decode(two)
	if err != nil {
		t.Fatal(err)
	}
	if a == c || c.(*corev1.ConfigMap).ResourceVersion != "11" {
		t.Error("another version was taken for the first")
	}
	unstored := configMap(t, 1, 0)
	x, err := d.Decode(unstored)
	if err != nil {
		t.Fatal(err)
	}
	if y, err := d.Decode(unstored); err != nil || x == y {
		t.Errorf("an object without a revision was cached (%v)", err)
	}
	other := configMap(t, 2, 10) // as from another store
	if z, err := d.Decode(other); err != nil || z.(*corev1.ConfigMap).Name != "c-2" {
		t.Errorf("the revision alone found %v (%v)", z, err)
	}
}

func TestDecoderBound(t *testing.T) {
	const bound = 64 << 10
	d := NewDecoder(bound)
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range 500 {
				o := configMap(t, i, uint64(1+i+worker%2*1000))
				obj, err := d.Decode(o)
				if err != nil {
					t.Error(err)
					return
				}
				if got := obj.(*corev1.ConfigMap).Name; got != o.Key.Name {
					t.Errorf("decoded %s as %s", o.Key, got)
				}
				if n := d.Bytes(); n > bound || n < 0 {
					t.Errorf("%d bytes cached, the bound is %d", n, bound)
				}
			}
		}()
	}
	wg.Wait()
	if d.cache.Len() == 0 {
		t.Error("nothing was cached")
	}
	sum := 0
	for _, e := range d.cache.Values() {
		sum += e.cost
	}
	if sum != d.Bytes() {
		t.Errorf("%d bytes are counted, %d are held", d.Bytes(), sum)
	}
}

func TestDecoderWithoutCache(t *testing.T) {
	d := NewDecoder(0)
	o := configMap(t, 1, 10)
	a, err := d.Decode(o)
	if err != nil {
		t.Fatal(err)
	}
	b, err := d.Decode(o)
	if err != nil {
		t.Fatal(err)
	}
	if a == b || d.Bytes() != 0 {
		t.Error("something was cached")
	}
}

func BenchmarkDecode(b *testing.B) {
	o := stored(b, samples(b)["pods"].(*corev1.Pod), 5)
	b.Run("plain", func(b *testing.B) {
		for b.Loop() {
			if _, err := Decode(o); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("cached", func(b *testing.B) {
		d := NewDecoder(1 << 20)
		for b.Loop() {
			if _, err := d.Decode(o); err != nil {
				b.Fatal(err)
			}
		}
	})
}
