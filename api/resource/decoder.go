package resource

import (
	"fmt"
	"math"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/shepherd-project/shepherd/fsm"
)

// Decoder decodes stored objects and remembers the results by object version,
// the most recently used ones within a bound of bytes. It is safe for
// concurrent use.
//
// Its results are SHARED and read-only: DeepCopy before any change. A build
// with the tag shepherddebug encodes each result again when it is used and
// panics if somebody changed it.
type Decoder struct {
	maxBytes int

	mu    sync.Mutex
	bytes int
	cache *simplelru.LRU[uint64, decoded] // by revision, which is unique to an object version
}

type decoded struct {
	key  fsm.Key
	obj  runtime.Object
	cost int
	mark mark // of the encoded form, in debug builds
}

// NewDecoder returns a Decoder that holds about maxBytes of decoded objects.
// With maxBytes <= 0 it remembers nothing.
func NewDecoder(maxBytes int) *Decoder {
	d := &Decoder{maxBytes: maxBytes}
	cache, err := simplelru.NewLRU(math.MaxInt, func(_ uint64, e decoded) { d.bytes -= e.cost })
	if err != nil {
		panic(fmt.Sprintf("resource: cache of %d entries: %v", math.MaxInt, err)) // never: only a size below 1 is refused
	}
	d.cache = cache
	return d
}

// decodedFactor estimates the size of a decoded object from its encoded bytes.
const (
	decodedFactor = 4
	decodedBase   = 1024
)

// Decode returns the typed object of a stored one. It is shared and read-only.
func (d *Decoder) Decode(o *fsm.Object) (runtime.Object, error) {
	if e, ok := d.get(o); ok {
		e.mark.check(o.Key, e.obj)
		return e.obj, nil
	}
	obj, err := Decode(o)
	if err != nil {
		return nil, err
	}
	d.add(o, obj)
	return obj, nil
}

// Bytes returns the estimated size of what is remembered.
func (d *Decoder) Bytes() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.bytes
}

func (d *Decoder) get(o *fsm.Object) (decoded, bool) {
	if o.Modified == 0 { // not from a store
		return decoded{}, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	e, ok := d.cache.Get(o.Modified)
	return e, ok && e.key == o.Key
}

func (d *Decoder) add(o *fsm.Object, obj runtime.Object) {
	e := decoded{key: o.Key, obj: obj, cost: decodedBase + decodedFactor*len(o.Data)}
	if o.Modified == 0 || e.cost > d.maxBytes {
		return
	}
	e.mark = newMark(obj)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cache.Remove(o.Modified) // two readers may have decoded the same version; the callback settles the bytes
	d.cache.Add(o.Modified, e)
	d.bytes += e.cost
	for d.bytes > d.maxBytes {
		d.cache.RemoveOldest()
	}
}
