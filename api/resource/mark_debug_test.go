//go:build shepherddebug

package resource

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestDebugBuildNoticesChanges(t *testing.T) {
	d := NewDecoder(1 << 20)
	o := configMap(t, 1, 10)
	obj, err := d.Decode(o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Decode(o); err != nil { // untouched: no panic
		t.Fatal(err)
	}
	obj.(*corev1.ConfigMap).Data["number"] = "changed"
	defer func() {
		if r := recover(); r == nil || !strings.Contains(r.(string), "configmaps/default/c-1") {
			t.Errorf("a change in place gave %v", r)
		}
	}()
	_, _ = d.Decode(o) // panics
}
