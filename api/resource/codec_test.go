package resource

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"

	"github.com/shepherd-project/shepherd/fsm"
)

// filler fills objects with values that survive a round trip.
func filler(seed int64) *randfill.Filler {
	return randfill.New().RandSource(rand.NewSource(seed)).NilChance(0.3).NumElements(1, 3).MaxDepth(12).Funcs(
		func(q *resource.Quantity, c randfill.Continue) {
			*q = *resource.NewMilliQuantity(c.Int63n(1e6), resource.DecimalSI)
			_ = q.String() // as decoding does, which caches the text
		},
		func(v *metav1.Time, c randfill.Continue) { *v = metav1.Unix(c.Int63n(1<<31), 0) },
		func(v *metav1.MicroTime, c randfill.Continue) {
			*v = metav1.MicroTime{Time: metav1.Unix(c.Int63n(1<<31), 0).Time}
		},
		func(v *intstr.IntOrString, c randfill.Continue) { *v = intstr.FromInt32(c.Int31()) },
		func(v *metav1.FieldsV1, c randfill.Continue) { v.Raw = []byte(`{"f:data":{}}`) },
		func(v *runtime.RawExtension, c randfill.Continue) {},
		func(v *metav1.TypeMeta, c randfill.Continue) {},
		// The bytes of a nil value in a map read back as empty, which differs on the wire.
		func(v *[]byte, c randfill.Continue) { *v = []byte(c.String(8)) },
	)
}

func TestRoundTrip(t *testing.T) {
	for _, k := range All() {
		for seed := range int64(20) {
			obj := k.New().(object)
			filler(seed).Fill(obj)
			obj.GetObjectKind().SetGroupVersionKind(k.GVK)
			obj.SetSelfLink("")
			obj.SetResourceVersion("5")
			before := obj.DeepCopyObject()

			data, err := Encode(obj)
			if err != nil {
				t.Fatalf("%s, seed %d: %v", k.Resource, seed, err)
			}
			if !apiequality.Semantic.DeepEqual(before, obj) {
				t.Fatalf("%s, seed %d: Encode changed its argument", k.Resource, seed)
			}
			again, err := Encode(obj.DeepCopyObject())
			if err != nil || !bytes.Equal(data, again) {
				t.Fatalf("%s, seed %d: equal objects give different bytes (%v)", k.Resource, seed, err)
			}
			o := &fsm.Object{Key: k.Key("n", "x"), Modified: 77, Data: data}
			decoded, err := Decode(o)
			if err != nil {
				t.Fatalf("%s, seed %d: %v", k.Resource, seed, err)
			}
			obj.SetResourceVersion("77")
			if !apiequality.Semantic.DeepEqual(obj, decoded) {
				t.Fatalf("%s, seed %d: the object changed in the round trip", k.Resource, seed)
			}
			reencoded, err := Encode(decoded)
			if err != nil || !bytes.Equal(data, reencoded) {
				t.Fatalf("%s, seed %d: encoding what was decoded gives other bytes (%v)", k.Resource, seed, err)
			}
		}
	}
}

// TestEncodeIsDeterministic: maps have no order, their bytes have.
func TestEncodeIsDeterministic(t *testing.T) {
	encode := func() []byte {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Data: map[string]string{}}
		for _, i := range rand.Perm(200) {
			cm.Data[fmt.Sprint("key-", i)] = fmt.Sprint(i)
		}
		data, err := Encode(cm)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	first := encode()
	for range 20 {
		if !bytes.Equal(first, encode()) {
			t.Fatal("the bytes depend on the order of a map")
		}
	}
}

// TestStockDecoderReadsEnvelopes: what is built without decoding is what
// Kubernetes' own codec reads, resourceVersion included.
func TestStockDecoderReadsEnvelopes(t *testing.T) {
	for name, obj := range samples(t) {
		o := stored(t, obj, 4711)
		want, err := Decode(o)
		if err != nil {
			t.Fatal(err)
		}
		data, err := AppendEnvelope(nil, o)
		if err != nil {
			t.Fatal(err)
		}
		got, gvk, err := Codecs.UniversalDeserializer().Decode(data, nil, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got.GetObjectKind().SetGroupVersionKind(*gvk)
		if got.(metav1.Object).GetResourceVersion() != "4711" || !apiequality.Semantic.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
		item, err := AppendItem([]byte("before"), o)
		if err != nil {
			t.Fatal(err)
		}
		fresh := ForObject(obj).New()
		if err := fresh.(unmarshaler).Unmarshal(item[len("before"):]); err != nil {
			t.Fatal(err)
		}
		if !apiequality.Semantic.DeepEqual(fresh, want) {
			t.Errorf("%s: the list item differs", name)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	pod, err := Encode(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		data []byte
		want error
	}{
		"nothing":         {nil, ErrEnvelope},
		"json":            {[]byte(`{"kind":"Pod"}`), ErrEnvelope},
		"prefix only":     {[]byte("k8s\x00"), ErrEnvelope},
		"no kind":         {[]byte("k8s\x00\x0a\x04\x0a\x02v1\x12\x00"), ErrEnvelope},
		"unknown kind":    {[]byte("k8s\x00\x0a\x08\x0a\x02v1\x12\x02No\x12\x00"), ErrUnknownKind},
		"content type":    {append(append([]byte{}, pod...), 0x22, 1, 'x'), ErrEnvelope},
		"truncated":       {pod[:len(pod)-1], ErrEnvelope},
		"wrong wire type": {append(append([]byte{}, pod...), 0x28, 1), ErrEnvelope},
	} {
		if _, err := Decode(&fsm.Object{Data: c.data}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if _, err := Encode(&metav1.Status{}); !errors.Is(err, ErrUnknownKind) {
		t.Errorf("encoding a Status: %v", err)
	}
	var nilPod *corev1.Pod
	if _, err := Encode(nilPod); err == nil {
		t.Error("a nil pod was encoded")
	}
}

// FuzzDecode: whatever the bytes, Decode returns or refuses, and what it
// accepts can be stored again.
func FuzzDecode(f *testing.F) {
	for _, obj := range samples(f) {
		f.Add(stored(f, obj, 1).Data)
	}
	f.Add([]byte("k8s\x00\x0a\x08\x0a\x02v1\x12\x02No\x12\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		o := &fsm.Object{Key: fsm.Key{Resource: "pods", Namespace: "n", Name: "x"}, Modified: 3, Data: data}
		obj, err := Decode(o)
		if _, itemErr := AppendItem(nil, o); err == nil && itemErr != nil {
			t.Errorf("decoded, but no list item: %v", itemErr)
		}
		if err != nil {
			return
		}
		stable, err := Encode(obj)
		if err != nil {
			t.Fatalf("decoded, but not encoded: %v", err)
		}
		again, err := Decode(&fsm.Object{Modified: 3, Data: stable})
		if err != nil {
			t.Fatalf("encoded, but not decoded: %v", err)
		}
		if twice, err := Encode(again); err != nil || !bytes.Equal(stable, twice) {
			t.Fatalf("the bytes do not settle (%v)", err)
		}
	})
}
