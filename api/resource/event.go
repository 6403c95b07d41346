package resource

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var eventDoc = corev1.Event{}.SwaggerDoc()

var eventKind = define(
	Kind{
		GVK: corev1.SchemeGroupVersion.WithKind("Event"), Resource: "events", Singular: "event",
		ShortNames: []string{"ev"}, Namespaced: true, UnconditionalUpdate: true, CreateOnUpdate: true,
	},
	func() *corev1.Event { return &corev1.Event{} },
	func() runtime.Object { return &corev1.EventList{} },
	typed[*corev1.Event]{
		name:           apivalidation.NameIsDNSSubdomain,
		validate:       validateEvent,
		validateUpdate: validateEventUpdate,
		fields: func(e *corev1.Event) fields.Set {
			source := e.Source.Component
			if source == "" {
				source = e.ReportingController
			}
			return fields.Set{
				"involvedObject.kind":            e.InvolvedObject.Kind,
				"involvedObject.namespace":       e.InvolvedObject.Namespace,
				"involvedObject.name":            e.InvolvedObject.Name,
				"involvedObject.uid":             string(e.InvolvedObject.UID),
				"involvedObject.apiVersion":      e.InvolvedObject.APIVersion,
				"involvedObject.resourceVersion": e.InvolvedObject.ResourceVersion,
				"involvedObject.fieldPath":       e.InvolvedObject.FieldPath,
				"reason":                         e.Reason,
				"reportingComponent":             e.ReportingController,
				"source":                         source,
				"type":                           e.Type,
			}
		},
		columns: []metav1.TableColumnDefinition{
			column("Last Seen", "string", eventDoc["lastTimestamp"]),
			column("Type", "string", eventDoc["type"]),
			column("Reason", "string", eventDoc["reason"]),
			column("Object", "string", eventDoc["involvedObject"]),
			wide("Subobject", "string", corev1.ObjectReference{}.SwaggerDoc()["fieldPath"]),
			wide("Source", "string", eventDoc["source"]),
			column("Message", "string", eventDoc["message"]),
			wide("First Seen", "string", eventDoc["firstTimestamp"]),
			wide("Count", "string", eventDoc["count"]),
			{Name: "Name", Type: "string", Format: "name", Description: objectMetaDoc["name"], Priority: 1},
		},
		row: eventRow,
	},
)

func eventRow(e *corev1.Event, now time.Time) []any {
	first := since(e.FirstTimestamp.Time, now)
	if e.FirstTimestamp.IsZero() {
		first = since(e.EventTime.Time, now)
	}
	last := since(e.LastTimestamp.Time, now)
	if e.LastTimestamp.IsZero() {
		last = first
	}
	count := e.Count
	if e.Series != nil {
		last = since(e.Series.LastObservedTime.Time, now)
		count = e.Series.Count
	} else if count == 0 {
		count = 1
	}
	object := strings.ToLower(e.InvolvedObject.Kind)
	if e.InvolvedObject.Name != "" {
		object += "/" + e.InvolvedObject.Name
	}
	component, host := e.Source.Component, e.Source.Host
	if component == "" {
		component = e.ReportingController
	}
	if host == "" {
		host = e.ReportingInstance
	}
	source := component
	if host != "" {
		source += ", " + host
	}
	return []any{
		last, e.Type, e.Reason, object, e.InvolvedObject.FieldPath, source,
		strings.TrimSpace(e.Message), first, int64(count), e.Name,
	}
}

func validateEvent(e *corev1.Event) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("involvedObject", "namespace")
	switch involved := e.InvolvedObject.Namespace; {
	case involved == "" && e.Namespace != metav1.NamespaceDefault && e.Namespace != metav1.NamespaceSystem:
		errs = append(errs, field.Invalid(path, involved, "does not match event.namespace"))
	case involved != "" && involved != e.Namespace:
		errs = append(errs, field.Invalid(path, involved, "does not match event.namespace"))
	}
	if e.EventTime.IsZero() { // written by the first API: nothing more is asked
		return errs
	}
	const reasonLimit, noteLimit = 128, 1024
	if e.ReportingController == "" {
		errs = append(errs, field.Required(field.NewPath("reportingController"), ""))
	}
	for _, message := range validation.IsQualifiedName(e.ReportingController) {
		errs = append(errs, field.Invalid(field.NewPath("reportingController"), e.ReportingController, message))
	}
	errs = append(errs, requireShort(field.NewPath("reportingInstance"), e.ReportingInstance, reasonLimit)...)
	errs = append(errs, requireShort(field.NewPath("action"), e.Action, reasonLimit)...)
	errs = append(errs, requireShort(field.NewPath("reason"), e.Reason, reasonLimit)...)
	if len(e.Message) > noteLimit {
		errs = append(errs, field.TooLong(field.NewPath("message"), "", noteLimit))
	}
	return errs
}

func requireShort(path *field.Path, value string, limit int) field.ErrorList {
	switch {
	case value == "":
		return field.ErrorList{field.Required(path, "")}
	case len(value) > limit:
		return field.ErrorList{field.TooLong(path, "", limit)}
	}
	return nil
}

// validateEventUpdate keeps events of the newer form unchanged but for their
// series.
func validateEventUpdate(new, old *corev1.Event) field.ErrorList {
	if new.EventTime.IsZero() && old.EventTime.IsZero() {
		return nil
	}
	var errs field.ErrorList
	immutable := func(name string, n, o any) {
		errs = append(errs, apivalidation.ValidateImmutableField(n, o, field.NewPath(name))...)
	}
	immutable("involvedObject", new.InvolvedObject, old.InvolvedObject)
	immutable("reason", new.Reason, old.Reason)
	immutable("message", new.Message, old.Message)
	immutable("type", new.Type, old.Type)
	immutable("eventTime", new.EventTime, old.EventTime)
	immutable("action", new.Action, old.Action)
	immutable("reportingController", new.ReportingController, old.ReportingController)
	immutable("reportingInstance", new.ReportingInstance, old.ReportingInstance)
	return errs
}
