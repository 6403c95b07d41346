package api

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shepherd-project/shepherd/api/resource"
)

// requestInfo says what one request asks for. Kind is nil for a path that
// names no stored resource (discovery, health, virtual resources).
type requestInfo struct {
	Verb        string // get, list, watch, create, update, patch, delete, deletecollection; else the method in lower case
	Kind        *resource.Kind
	GVR         schema.GroupVersionResource // as asked, also without a Kind
	Namespace   string
	Name        string
	Subresource string
	Path        string     // as asked
	Query       url.Values // never nil
}

// isResource says whether the request names a stored resource.
func (i requestInfo) isResource() bool { return i.Kind != nil }

// groupResource is the resource as errors name it.
func (i requestInfo) groupResource() schema.GroupResource { return i.GVR.GroupResource() }

// parseRequest says what r asks for. The error is ready for writeError: 404 for
// an unknown path, 405 for a verb that the resource lacks.
func parseRequest(r *http.Request) (requestInfo, *apierrors.StatusError) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return requestInfo{}, apierrors.NewBadRequest("malformed query: " + err.Error())
	}
	return parsePath(r.Method, r.URL.Path, query)
}

// parsePath is parseRequest on the request's parts, for a forwarded write.
//
//	/api/v1 | /apis/GROUP/VERSION, then one of
//	  RESOURCE[/NAME[/SUBRESOURCE]]
//	  namespaces/NAMESPACE/RESOURCE[/NAME[/SUBRESOURCE]]
//	  namespaces[/NAME[/status|finalize]]
//
// each with the old prefix watch/ as well.
func parsePath(method, path string, query url.Values) (requestInfo, *apierrors.StatusError) {
	info := requestInfo{Verb: strings.ToLower(method), Path: path, Query: query}
	if info.Query == nil {
		info.Query = url.Values{}
	}
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case parts[0] == "api" && len(parts) > 2:
		info.GVR.Version, parts = parts[1], parts[2:]
	case parts[0] == "apis" && len(parts) > 3:
		info.GVR.Group, info.GVR.Version, parts = parts[1], parts[2], parts[3:]
	default:
		return info, nil
	}
	oldWatch := parts[0] == "watch" && len(parts) > 1
	if oldWatch {
		parts = parts[1:]
	}
	namespaced := false
	if parts[0] == "namespaces" && len(parts) > 2 && !(len(parts) == 3 && isNamespaceSubresource(parts[2])) {
		info.Namespace, parts, namespaced = parts[1], parts[2:], true
	}
	info.GVR.Resource = parts[0]
	if len(parts) > 1 {
		info.Name = parts[1]
	}
	if len(parts) > 2 {
		info.Subresource = parts[2]
	}
	info.Verb = verbFor(method, info, oldWatch)
	if len(parts) > 3 || slices.Contains(parts, "") || namespaced && info.Namespace == "" {
		return info, errPathNotFound(info.Verb, info.groupResource(), info.Name)
	}
	if isVirtual(info.GVR) {
		return info, nil
	}
	kind := resource.ByResource(info.GVR)
	if kind == nil || namespaced && !kind.Namespaced {
		return info, errPathNotFound(info.Verb, info.groupResource(), info.Name)
	}
	info.Kind = kind
	if oldWatch && info.Name != "" {
		info.watchOneName()
	}
	return info, info.check(method, namespaced)
}

// check refuses what the kind does not have.
func (i *requestInfo) check(method string, namespaced bool) *apierrors.StatusError {
	if i.Kind.Namespaced && !namespaced && i.Name != "" {
		return errPathNotFound(i.Verb, i.groupResource(), i.Name)
	}
	if i.Subresource != "" {
		sub := i.Kind.Subresource(i.Subresource)
		if sub == nil {
			return errPathNotFound(i.Verb, i.groupResource(), i.Name)
		}
		if !slices.Contains(sub.Verbs, i.Verb) {
			return errMethodNotAllowed(i.groupResource(), i.Verb)
		}
		return nil
	}
	switch i.Verb {
	case "get", "list", "watch":
	case "create":
		if i.Name != "" || i.Kind.Namespaced && !namespaced {
			return errMethodNotAllowed(i.groupResource(), strings.ToLower(method))
		}
	case "deletecollection":
		if i.Kind.Namespaced && !namespaced {
			return errMethodNotAllowed(i.groupResource(), i.Verb)
		}
	case "update", "patch", "delete":
		if i.Name == "" {
			return errMethodNotAllowed(i.groupResource(), i.Verb)
		}
	default:
		return errMethodNotAllowed(i.groupResource(), i.Verb)
	}
	if !i.Kind.Supports(i.Verb) {
		return errMethodNotAllowed(i.groupResource(), i.Verb)
	}
	return nil
}

// watchOneName turns the old path watch/RESOURCE/NAME into a watch of the
// collection with a selector of that name.
func (i *requestInfo) watchOneName() {
	selector := fields.OneTermEqualSelector("metadata.name", i.Name).String()
	query := url.Values{}
	for k, v := range i.Query {
		query[k] = v
	}
	if old := query.Get("fieldSelector"); old != "" {
		selector = old + "," + selector
	}
	query.Set("fieldSelector", selector)
	i.Query, i.Name = query, ""
}

// verbFor is the verb of a request on a resource path.
func verbFor(method string, info requestInfo, oldWatch bool) string {
	switch method {
	case http.MethodGet, http.MethodHead:
		switch {
		case oldWatch:
			return "watch"
		case info.Name != "":
			return "get"
		case queryBool(info.Query, "watch"):
			return "watch"
		}
		return "list"
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		if info.Name == "" {
			return "deletecollection"
		}
		return "delete"
	}
	return strings.ToLower(method)
}

// queryBool reads a boolean query parameter as upstream does: present without a
// value, or with any value but a false one, is true.
func queryBool(query url.Values, name string) bool {
	values, ok := query[name]
	if !ok || len(values) == 0 {
		return false
	}
	switch strings.ToLower(values[0]) {
	case "false", "0":
		return false
	}
	return true
}

func isNamespaceSubresource(s string) bool { return s == "status" || s == "finalize" }
