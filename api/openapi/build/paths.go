package build

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shepherd-project/shepherd/api/resource"
)

// form writes the parts of an operation that differ between versions 2 and 3
// of the format.
type form interface {
	// parameter returns a query or path parameter of a simple type.
	parameter(in, name, typ string, required bool) map[string]any
	// body puts the request body of a model into the operation.
	body(op map[string]any, model string, contentTypes []string)
	// response returns an answer of a model; "" is plain text.
	response(model string) map[string]any
}

var (
	objectTypes = []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf"}
	patchTypes  = []string{
		"application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json",
	}
)

// paths returns the paths of the kinds. The PATCH operations tell clients what
// the server can do: kubectl looks for dryRun and fieldValidation there.
func paths(kinds []*resource.Kind, f form) map[string]any {
	all := map[string]any{}
	for _, k := range kinds {
		collection := root(k.GVK.GroupVersion())
		if k.Namespaced {
			all[collection+"/"+k.Resource] = map[string]any{
				"get": operation(f, "list", k.GVK, "list"+k.GVK.Kind+"ForAllNamespaces", modelOf(listOf(k)), "", listParameters),
			}
			collection += "/namespaces/{namespace}"
		}
		collection += "/" + k.Resource
		all[collection] = collectionPath(f, k)
		all[collection+"/{name}"] = itemPath(f, k, k.GVK, "", []string{"get", "put", "patch", "delete"})
		for _, sub := range k.Subresources {
			all[collection+"/{name}/"+sub.Name] = itemPath(f, k, sub.GVK, sub.Name, methods(sub.Verbs))
		}
	}
	return all
}

// methods maps verbs to HTTP methods.
func methods(verbs []string) []string {
	of := map[string]string{"get": "get", "update": "put", "patch": "patch", "delete": "delete", "create": "post"}
	var list []string
	for _, verb := range verbs {
		list = append(list, of[verb])
	}
	return list
}

func collectionPath(f form, k *resource.Kind) map[string]any {
	path := map[string]any{
		"get":  operation(f, "list", k.GVK, "list"+scope(k)+k.GVK.Kind, modelOf(listOf(k)), "", listParameters),
		"post": operation(f, "post", k.GVK, "create"+scope(k)+k.GVK.Kind, modelOf(k.GVK), modelOf(k.GVK), writeParameters),
	}
	if k.Supports("deletecollection") {
		path["delete"] = operation(f, "deletecollection", k.GVK, "deleteCollection"+scope(k)+k.GVK.Kind, statusModel, deleteOptionsModel, deleteCollectionParameters)
	}
	if parameters := pathParameters(f, k, false); parameters != nil {
		path["parameters"] = parameters
	}
	return path
}

func itemPath(f form, k *resource.Kind, gvk schema.GroupVersionKind, sub string, methods []string) map[string]any {
	path := map[string]any{"parameters": pathParameters(f, k, true)}
	model := modelOf(gvk)
	suffix := scope(k) + k.GVK.Kind + strings.ToUpper(sub[:min(1, len(sub))]) + sub[min(1, len(sub)):]
	for _, method := range methods {
		switch method {
		case "get":
			answer := model
			if sub == "log" {
				answer = ""
			}
			path[method] = operation(f, "get", gvk, "read"+suffix, answer, "", nil)
		case "put":
			path[method] = operation(f, "put", gvk, "replace"+suffix, model, model, writeParameters)
		case "post":
			path[method] = operation(f, "post", gvk, "create"+suffix, model, model, writeParameters)
		case "patch":
			path[method] = operation(f, "patch", gvk, "patch"+suffix, model, patchModel, append(writeParameters[:len(writeParameters):len(writeParameters)], query{"force", "boolean"}))
		case "delete":
			path[method] = operation(f, "delete", gvk, "delete"+suffix, statusModel, deleteOptionsModel, deleteParameters)
		}
	}
	return path
}

func scope(k *resource.Kind) string {
	if k.Namespaced {
		return "Namespaced"
	}
	return ""
}

func pathParameters(f form, k *resource.Kind, named bool) []any {
	var list []any
	if named {
		list = append(list, f.parameter("path", "name", "string", true))
	}
	if k.Namespaced {
		list = append(list, f.parameter("path", "namespace", "string", true))
	}
	return list
}

type query struct{ name, typ string }

var (
	writeParameters  = []query{{"dryRun", "string"}, {"fieldManager", "string"}, {"fieldValidation", "string"}, {"pretty", "string"}}
	deleteParameters = []query{
		{"dryRun", "string"}, {"gracePeriodSeconds", "integer"}, {"propagationPolicy", "string"}, {"pretty", "string"},
	}
	deleteCollectionParameters = append([]query{
		{"continue", "string"}, {"fieldSelector", "string"}, {"labelSelector", "string"}, {"limit", "integer"},
	}, deleteParameters...)
	listParameters = []query{
		{"allowWatchBookmarks", "boolean"}, {"continue", "string"}, {"fieldSelector", "string"}, {"labelSelector", "string"},
		{"limit", "integer"}, {"pretty", "string"}, {"resourceVersion", "string"}, {"resourceVersionMatch", "string"},
		{"sendInitialEvents", "boolean"}, {"timeoutSeconds", "integer"}, {"watch", "boolean"},
	}
)

func operation(f form, action string, gvk schema.GroupVersionKind, id, answer, body string, parameters []query) map[string]any {
	op := map[string]any{
		"operationId":         strings.ReplaceAll(gvk.GroupVersion().String(), "/", "_") + "_" + id,
		"x-kubernetes-action": action,
		gvkExtension:          gvkMap(gvk),
		"responses":           map[string]any{"200": f.response(answer)},
	}
	var list []any
	for _, q := range parameters {
		list = append(list, f.parameter("query", q.name, q.typ, false))
	}
	if list != nil {
		op["parameters"] = list
	}
	if body != "" {
		types := objectTypes
		if body == patchModel {
			types = patchTypes
		}
		f.body(op, body, types)
	}
	return op
}
