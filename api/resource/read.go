package resource

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/shepherd-project/shepherd/fsm"
)

// Get returns an object of a view through the decoder's cache: shared and
// read-only. The resource is a kind's GroupResource ("deployments.apps"); T is
// its Go type. The boolean is false if there is no such object.
func Get[T runtime.Object](d *Decoder, v *fsm.View, groupResource, namespace, name string) (T, bool, error) {
	var none T
	o := v.Get(fsm.Key{Resource: groupResource, Namespace: namespace, Name: name})
	if o == nil {
		return none, false, nil
	}
	obj, err := decodeAs[T](d, o)
	if err != nil {
		return none, false, err
	}
	return obj, true, nil
}

// List returns all objects of a resource in a namespace ("" for all), ordered
// by namespace and name: shared and read-only.
func List[T runtime.Object](d *Decoder, v *fsm.View, groupResource, namespace string) ([]T, error) {
	var objs []T
	for o := range v.List(groupResource, namespace) {
		obj, err := decodeAs[T](d, o)
		if err != nil {
			return nil, err
		}
		objs = append(objs, obj)
	}
	return objs, nil
}

func decodeAs[T runtime.Object](d *Decoder, o *fsm.Object) (T, error) {
	var none T
	obj, err := d.Decode(o)
	if err != nil {
		return none, err
	}
	typed, ok := obj.(T)
	if !ok {
		return none, fmt.Errorf("decode %s: it is a %T, not a %T", o.Key, obj, none)
	}
	return typed, nil
}
