package main

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// taints is a flag that holds KEY[=VALUE]:EFFECT,... It may be repeated.
type taints struct{ list *[]corev1.Taint }

func (t *taints) Type() string { return "taints" }

func (t *taints) String() string {
	if t.list == nil {
		return ""
	}
	out := make([]string, 0, len(*t.list))
	for i := range *t.list {
		out = append(out, (*t.list)[i].ToString())
	}
	return strings.Join(out, ",")
}

func (t *taints) Set(text string) error {
	for _, one := range strings.Split(text, ",") {
		if one == "" {
			continue
		}
		keyValue, effect, ok := strings.Cut(one, ":")
		key, value, _ := strings.Cut(keyValue, "=")
		effects := []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}
		if !ok || key == "" || !slices.Contains(effects, corev1.TaintEffect(effect)) {
			return fmt.Errorf("%q is not KEY[=VALUE]:EFFECT with one of the effects %v", one, effects)
		}
		*t.list = append(*t.list, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)})
	}
	return nil
}
