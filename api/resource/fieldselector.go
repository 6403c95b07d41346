package resource

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/fields"
)

// ParseFieldSelector parses a fieldSelector query parameter and refuses labels
// that the kind does not support. The error is the client's (400).
func (k *Kind) ParseFieldSelector(selector string) (fields.Selector, error) {
	parsed, err := fields.ParseSelector(selector)
	if err != nil {
		return nil, err
	}
	return parsed.Transform(func(label, value string) (string, string, error) {
		if alias, ok := k.FieldAliases[label]; ok {
			label = alias
		}
		if !slices.Contains(k.FieldLabels, label) {
			return "", "", fmt.Errorf("field label not supported: %s", label)
		}
		return label, value, nil
	})
}
