//go:build shepherddebug

package resource

import (
	"fmt"

	"github.com/cespare/xxhash/v2"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/shepherd-project/shepherd/fsm"
)

// mark is a checksum of a shared object at the time it was decoded.
type mark uint64

func newMark(obj runtime.Object) mark { return mark(checksum(obj)) }

// check panics if the shared object was changed since it was decoded.
func (m mark) check(key fsm.Key, obj runtime.Object) {
	if checksum(obj) != uint64(m) {
		panic(fmt.Sprintf("resource: the shared, read-only %s was changed in place: DeepCopy it first", key))
	}
}

func checksum(obj runtime.Object) uint64 {
	data, err := Encode(obj)
	if err != nil {
		panic(fmt.Sprintf("resource: encode the shared %T: %v", obj, err))
	}
	return xxhash.Sum64(data)
}
