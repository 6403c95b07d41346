// Package openapi serves the OpenAPI documents of the API from bytes that were
// generated ahead of time: version 3 with a document for each group version,
// and version 2 as JSON and as protobuf. kubectl validates, explains and
// patches by them.
//
// The documents come from the source of the Kubernetes types (subpackage
// build/definitions) and from the table of kinds (build). `go generate` makes
// both again; a test fails when the committed documents differ from what the
// table says. They are kept compressed and unpacked on demand, so an idle
// server holds a few hundred kilobytes.
package openapi

//go:generate go run k8s.io/kube-openapi/cmd/openapi-gen --output-dir build/definitions --output-pkg github.com/shepherd-project/shepherd/api/openapi/build/definitions --output-file zz_generated.openapi.go --go-header-file /dev/null --report-filename /dev/null k8s.io/api/core/v1 k8s.io/api/apps/v1 k8s.io/api/discovery/v1 k8s.io/api/coordination/v1 k8s.io/api/autoscaling/v1 k8s.io/api/policy/v1 k8s.io/api/authentication/v1 k8s.io/api/authorization/v1 k8s.io/apimachinery/pkg/apis/meta/v1 k8s.io/apimachinery/pkg/runtime k8s.io/apimachinery/pkg/version k8s.io/apimachinery/pkg/api/resource k8s.io/apimachinery/pkg/util/intstr
//go:generate go run ./gen static

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"k8s.io/kube-openapi/pkg/validation/spec"
)

// ContentTypeV2Proto answers a request for the protobuf form of version 2. It
// differs from what clients ask for (AcceptV2Proto), whose "@" old clients
// cannot parse in an answer.
const (
	ContentTypeV2Proto = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
	AcceptV2Proto      = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
)

//go:embed static/*.gz
var static embed.FS

// Names of the documents of version 2 among the static files.
const (
	v2JSON  = "v2.json"
	v2Proto = "v2.pb"
)

// table is what the package knows without unpacking anything.
type table struct {
	paths  []string          // of version 3, sorted
	files  map[string]string // name of a document -> embedded file
	hashes map[string]string
	index  []byte
}

var loaded = sync.OnceValue(load)

func load() *table {
	t := &table{files: map[string]string{}, hashes: map[string]string{}}
	entries, err := static.ReadDir("static")
	if err != nil {
		panic(fmt.Sprintf("openapi: embedded documents: %v", err)) // never: they are part of the binary
	}
	type pathEntry struct {
		ServerRelativeURL string `json:"serverRelativeURL"`
	}
	index := struct {
		Paths map[string]pathEntry `json:"paths"`
	}{map[string]pathEntry{}}
	for _, entry := range entries {
		file := "static/" + entry.Name()
		name := strings.TrimSuffix(entry.Name(), ".gz")
		if name != v2JSON && name != v2Proto {
			name = strings.ReplaceAll(name, "_", "/")
		}
		sum := sha256.Sum256(packed(file))
		t.files[name] = file
		t.hashes[name] = strings.ToUpper(hex.EncodeToString(sum[:]))
		if name != v2JSON && name != v2Proto {
			t.paths = append(t.paths, name)
			index.Paths[name] = pathEntry{"/openapi/v3/" + name + "?hash=" + t.hashes[name]}
		}
	}
	slices.Sort(t.paths)
	if t.index, err = json.Marshal(index); err != nil {
		panic(fmt.Sprintf("openapi: index: %v", err)) // never: strings only
	}
	return t
}

func packed(file string) []byte {
	data, err := static.ReadFile(file)
	if err != nil {
		panic(fmt.Sprintf("openapi: embedded document: %v", err)) // never: it is part of the binary
	}
	return data
}

func unpacked(file string) []byte {
	r, err := gzip.NewReader(bytes.NewReader(packed(file)))
	if err != nil {
		panic(fmt.Sprintf("openapi: embedded %s: %v", file, err)) // never: a test unpacks every document
	}
	data, err := io.ReadAll(r)
	if err != nil {
		panic(fmt.Sprintf("openapi: embedded %s: %v", file, err))
	}
	return data
}

// V3Index returns the JSON document of /openapi/v3. The caller must not change
// it.
func V3Index() []byte { return loaded().index }

// V3Paths returns the names of the documents of version 3: "api/v1",
// "apis/apps/v1". The caller must not change it.
func V3Paths() []string { return loaded().paths }

// V3 returns the JSON document of a group version. It is unpacked for each
// call and belongs to the caller.
func V3(path string) ([]byte, bool) {
	file, ok := loaded().files[path]
	if !ok || path == v2JSON || path == v2Proto {
		return nil, false
	}
	return unpacked(file), true
}

// V3Gzip returns the same document compressed, for clients that accept it.
func V3Gzip(path string) ([]byte, bool) {
	file, ok := loaded().files[path]
	if !ok || path == v2JSON || path == v2Proto {
		return nil, false
	}
	return packed(file), true
}

// Hash returns the hash of a document of version 3 as in the index, for an
// ETag and for the "hash" query parameter; "" if there is no such document.
func Hash(path string) string { return loaded().hashes[path] }

// V2Proto returns version 2 as protobuf, unpacked for each call. Its
// Content-Type is ContentTypeV2Proto.
func V2Proto() []byte { return unpacked(loaded().files[v2Proto]) }

// V2JSON returns version 2 as JSON, unpacked for each call.
func V2JSON() []byte { return unpacked(loaded().files[v2JSON]) }

// V2Hash returns a hash of version 2, for an ETag.
func V2Hash() string { return loaded().hashes[v2JSON] }

// Definitions returns the schemas of all documents of version 3 by name, with
// the kinds that they stand for: what server-side apply builds its type
// converter from. It costs some 20 ms; callers keep what they made of it.
func Definitions() (map[string]*spec.Schema, error) {
	all := map[string]*spec.Schema{}
	for _, path := range V3Paths() {
		data, _ := V3(path)
		var doc struct {
			Components struct {
				Schemas map[string]*spec.Schema `json:"schemas"`
			} `json:"components"`
		}
		if err := json.Unmarshal(data, &doc); err != nil {
			return nil, fmt.Errorf("openapi definitions of %s: %w", path, err)
		}
		for name, schema := range doc.Components.Schemas {
			all[name] = schema
		}
	}
	return all, nil
}
