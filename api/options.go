package api

import (
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// writeOptions are the query parameters that all writes share.
type writeOptions struct {
	// dryRun: decide, validate and answer, but change nothing.
	dryRun bool
	// validation is one of the metav1.FieldValidation constants.
	validation string
	// manager names who writes, for the ownership of fields.
	manager string
}

// parseWriteOptions reads the options of a POST, PUT or PATCH. The options
// that a DELETE or an Eviction carries in its body are read there.
func parseWriteOptions(query url.Values, userAgent string) (writeOptions, error) {
	o := writeOptions{validation: query.Get("fieldValidation"), manager: query.Get("fieldManager")}
	var errs field.ErrorList
	errs = append(errs, metav1validation.ValidateDryRun(field.NewPath("dryRun"), query["dryRun"])...)
	errs = append(errs, metav1validation.ValidateFieldValidation(field.NewPath("fieldValidation"), o.validation)...)
	errs = append(errs, metav1validation.ValidateFieldManager(o.manager, field.NewPath("fieldManager"))...)
	if len(errs) > 0 {
		return o, apierrors.NewInvalid(metav1.SchemeGroupVersion.WithKind("WriteOptions").GroupKind(), "", errs)
	}
	o.dryRun = isDryRun(query["dryRun"])
	if o.validation == "" {
		o.validation = metav1.FieldValidationWarn
	}
	if o.manager == "" {
		o.manager = managerFromUserAgent(userAgent)
	}
	return o, nil
}

// isDryRun says whether a validated list of stages asks for a dry run.
func isDryRun(stages []string) bool { return len(stages) > 0 }
