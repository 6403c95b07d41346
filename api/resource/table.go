package resource

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	corev1 "k8s.io/api/core/v1"
)

var objectMetaDoc = metav1.ObjectMeta{}.SwaggerDoc()

// nameColumn and ageColumn open and close nearly every table.
var (
	nameColumn = metav1.TableColumnDefinition{Name: "Name", Type: "string", Format: "name", Description: objectMetaDoc["name"]}
	ageColumn  = metav1.TableColumnDefinition{Name: "Age", Type: "string", Description: objectMetaDoc["creationTimestamp"]}
)

// column is shown always, wide under -o wide only.
func column(name, typ, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: typ, Description: description}
}

func wide(name, typ, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: typ, Description: description, Priority: 1}
}

const (
	none    = "<none>"
	unknown = "<unknown>"
	unset   = "<unset>"
)

// age prints the time since t as kubectl does.
func age(t metav1.Time, now time.Time) string { return since(t.Time, now) }

func since(t, now time.Time) string {
	if t.IsZero() {
		return unknown
	}
	return duration.HumanDuration(now.Sub(t))
}

// orNone prints an absent text as <none>.
func orNone(text string) string {
	if text == "" {
		return none
	}
	return text
}

// firstOf joins at most limit of the texts and says how many more there are.
func firstOf(texts []string, limit int) string {
	if len(texts) == 0 {
		return unset
	}
	if len(texts) > limit {
		return fmt.Sprintf("%s + %d more...", strings.Join(texts[:limit], ","), len(texts)-limit)
	}
	return strings.Join(texts, ",")
}

// containerCells returns the names and images of containers.
func containerCells(containers []corev1.Container) (names, images string) {
	var n, i []string
	for _, c := range containers {
		n = append(n, c.Name)
		i = append(i, c.Image)
	}
	return strings.Join(n, ","), strings.Join(i, ",")
}
