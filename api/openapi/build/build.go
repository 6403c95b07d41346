// Package build makes the OpenAPI documents of package openapi from the kinds
// in the table and the definitions generated from the Kubernetes types. It
// runs at generate time and in the test that compares its result with the
// committed one; the server does not link it.
package build

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sort"
	"strings"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/shepherd-project/shepherd/api/openapi/build/definitions"
	"github.com/shepherd-project/shepherd/api/resource"
)

// V2JSON and V2Proto name the two forms of the old document in Documents'
// result; the others are the paths below /openapi/v3/.
const (
	V2JSON  = "v2.json"
	V2Proto = "v2.pb"
)

// title and version are in every document; Info is required by the format.
const (
	title   = "Kubernetes"
	version = "v1.37.2"
)

// Documents returns every document by name: "api/v1", "apis/apps/v1", V2JSON
// and V2Proto. Equal inputs give equal bytes.
func Documents() (map[string][]byte, error) {
	docs := map[string][]byte{}
	byVersion := map[schema.GroupVersion][]*resource.Kind{}
	for _, k := range resource.All() {
		byVersion[k.GVK.GroupVersion()] = append(byVersion[k.GVK.GroupVersion()], k)
	}
	for gv, kinds := range byVersion {
		doc, err := documentV3(kinds)
		if err != nil {
			return nil, fmt.Errorf("openapi v3 of %s: %w", gv, err)
		}
		docs[strings.TrimPrefix(root(gv), "/")] = doc
	}
	v2, err := documentV2(resource.All())
	if err != nil {
		return nil, fmt.Errorf("openapi v2: %w", err)
	}
	docs[V2JSON] = v2
	parsed, err := openapi_v2.ParseDocument(v2)
	if err != nil {
		return nil, fmt.Errorf("parse openapi v2: %w", err)
	}
	docs[V2Proto], err = proto.MarshalOptions{Deterministic: true}.Marshal(parsed)
	if err != nil {
		return nil, fmt.Errorf("marshal openapi v2: %w", err)
	}
	return docs, nil
}

func documentV3(kinds []*resource.Kind) ([]byte, error) {
	names := models(kinds)
	schemas, err := builder3.BuildOpenAPIDefinitionsForResources(&common.OpenAPIV3Config{
		GetDefinitions:    definitions.GetOpenAPIDefinitions,
		GetDefinitionName: definitionName,
	}, names...)
	if err != nil {
		return nil, err
	}
	return marshal(map[string]any{
		"openapi":    "3.0.0",
		"info":       map[string]any{"title": title, "version": version},
		"paths":      paths(kinds, formV3{}),
		"components": map[string]any{"schemas": schemas},
	})
}

func documentV2(kinds []*resource.Kind) ([]byte, error) {
	swagger, err := builder.BuildOpenAPIDefinitionsForResources(&common.Config{
		Info:              &spec.Info{InfoProps: spec.InfoProps{Title: title, Version: version}},
		GetDefinitions:    definitions.GetOpenAPIDefinitions,
		GetDefinitionName: definitionName,
	}, models(kinds)...)
	if err != nil {
		return nil, err
	}
	return marshal(map[string]any{
		"swagger":     "2.0",
		"info":        map[string]any{"title": title, "version": version},
		"paths":       paths(kinds, formV2{}),
		"definitions": withoutDefaults(swagger.Definitions),
	})
}

// withoutDefaults drops the default values, which clients of version 2 do not
// expect beside a reference.
func withoutDefaults(defs spec.Definitions) spec.Definitions {
	pruned := spec.Definitions{}
	for name, schema := range defs {
		pruned[name] = withoutDefault(schema)
	}
	return pruned
}

func withoutDefault(s spec.Schema) spec.Schema {
	s.Default = nil
	if s.Properties != nil {
		properties := make(map[string]spec.Schema, len(s.Properties))
		for name, property := range s.Properties {
			properties[name] = withoutDefault(property)
		}
		s.Properties = properties
	}
	if s.Items != nil && s.Items.Schema != nil {
		item := withoutDefault(*s.Items.Schema)
		s.Items = &spec.SchemaOrArray{Schema: &item}
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		value := withoutDefault(*s.AdditionalProperties.Schema)
		s.AdditionalProperties = &spec.SchemaOrBool{Allows: s.AdditionalProperties.Allows, Schema: &value}
	}
	return s
}

// marshal writes JSON with sorted keys, whatever the types' own marshalers do.
func marshal(doc any) ([]byte, error) {
	data, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var plain any
	if err := decoder.Decode(&plain); err != nil {
		return nil, err
	}
	return json.Marshal(plain)
}

// modelName is what every generated type of Kubernetes has.
type modelName interface{ OpenAPIModelName() string }

// Models that every document holds beside those of its kinds.
const (
	patchModel         = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch"
	statusModel        = "io.k8s.apimachinery.pkg.apis.meta.v1.Status"
	deleteOptionsModel = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"
)

// models returns the names of the types that the kinds' paths send or answer.
func models(kinds []*resource.Kind) []string {
	set := map[string]bool{patchModel: true, statusModel: true, deleteOptionsModel: true}
	for _, k := range kinds {
		set[modelOf(k.GVK)] = true
		set[modelOf(listOf(k))] = true
		for _, sub := range k.Subresources {
			set[modelOf(sub.GVK)] = true
		}
	}
	names := make([]string, 0, len(set))
	for name := range set {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

func listOf(k *resource.Kind) schema.GroupVersionKind {
	return k.GVK.GroupVersion().WithKind(k.GVK.Kind + "List")
}

// modelOf returns the name of a kind's definition. A kind without one is a
// mistake in the table, found when documents are generated.
func modelOf(gvk schema.GroupVersionKind) string {
	obj, err := resource.Scheme.New(gvk)
	if err != nil {
		panic(fmt.Sprintf("openapi: %s: %v", gvk, err))
	}
	return obj.(modelName).OpenAPIModelName()
}

// gvksByModel maps the definitions of top-level kinds to what they are, which
// the types' source does not tell.
var gvksByModel = func() map[string][]schema.GroupVersionKind {
	m := map[string][]schema.GroupVersionKind{}
	for gvk, t := range resource.Scheme.AllKnownTypes() {
		if gvk.Version == "__internal" || !served(gvk) {
			continue
		}
		obj, err := resource.Scheme.New(gvk)
		if err != nil {
			panic(fmt.Sprintf("openapi: %s (%s): %v", gvk, t, err))
		}
		if named, ok := obj.(modelName); ok {
			m[named.OpenAPIModelName()] = append(m[named.OpenAPIModelName()], gvk)
		}
	}
	for _, gvks := range m {
		sort.Slice(gvks, func(i, j int) bool { return gvks[i].String() < gvks[j].String() })
	}
	return m
}()

// served reports whether a type is sent or answered anywhere.
func served(gvk schema.GroupVersionKind) bool {
	for _, k := range resource.All() {
		if k.GVK.GroupVersion() == gvk.GroupVersion() {
			return true
		}
		for _, sub := range k.Subresources {
			if sub.GVK == gvk {
				return true
			}
		}
	}
	return false
}

func definitionName(name string) (string, spec.Extensions) {
	gvks := gvksByModel[name]
	if len(gvks) == 0 {
		return name, nil
	}
	list := make([]any, len(gvks))
	for i, gvk := range gvks {
		list[i] = gvkMap(gvk)
	}
	return name, spec.Extensions{gvkExtension: list}
}

const gvkExtension = "x-kubernetes-group-version-kind"

func gvkMap(gvk schema.GroupVersionKind) map[string]any {
	return map[string]any{"group": gvk.Group, "version": gvk.Version, "kind": gvk.Kind}
}

// root returns the path below which a group version is served.
func root(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "/api/" + gv.Version
	}
	return "/apis/" + gv.Group + "/" + gv.Version
}

// TypesVersion is the version of k8s.io/api that the definitions were
// generated from. A test compares it with the module's.
const TypesVersion = "v0.37.2"
