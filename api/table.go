package api

import (
	"fmt"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/shepherd-project/shepherd/api/resource"
)

// tableOf prints objects of one kind as a Table. The query's includeObject says
// what goes with each row: its metadata (the default), the whole object, or
// nothing. Only reads objs.
func (s *Server) tableOf(kind *resource.Kind, query url.Values, objs []runtime.Object) (*metav1.Table, error) {
	include, err := includeObject(query)
	if err != nil {
		return nil, err
	}
	table := &metav1.Table{ColumnDefinitions: kind.Columns, Rows: make([]metav1.TableRow, 0, len(objs))}
	table.SetGroupVersionKind(tableGVK)
	if table.ColumnDefinitions == nil {
		table.ColumnDefinitions = []metav1.TableColumnDefinition{}
	}
	now := s.now()
	for _, obj := range objs {
		row := metav1.TableRow{Cells: kind.Row(obj, now)}
		switch include {
		case metav1.IncludeObject:
			if row.Object.Raw, err = encodeJSON(kind.GVK, obj); err != nil {
				return nil, err
			}
		case metav1.IncludeMetadata:
			partial, err := partialMetadata(obj)
			if err != nil {
				return nil, err
			}
			row.Object.Object = partial
		}
		table.Rows = append(table.Rows, row)
	}
	if len(objs) == 1 {
		if m, ok := objs[0].(metav1.Object); ok {
			table.ResourceVersion = m.GetResourceVersion()
		}
	}
	return table, nil
}

// includeObject reads the query parameter of that name.
func includeObject(query url.Values) (metav1.IncludeObjectPolicy, error) {
	switch policy := metav1.IncludeObjectPolicy(query.Get("includeObject")); policy {
	case "":
		return metav1.IncludeMetadata, nil
	case metav1.IncludeNone, metav1.IncludeMetadata, metav1.IncludeObject:
		return policy, nil
	default:
		return "", apierrors.NewBadRequest(fmt.Sprintf("unrecognized includeObject value: %q", policy))
	}
}
