package api

import (
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shepherd-project/shepherd/api/resource"
)

// groupVersion is what one group version serves, in both forms of discovery.
type groupVersion struct {
	schema.GroupVersion
	plain      []metav1.APIResource
	aggregated []apidiscoveryv2.APIResourceDiscovery
}

// groupVersions sorts the kinds and the virtual resources by group version, in
// the order in which the kinds come. The core group stands apart.
func groupVersions(kinds []*resource.Kind) (core groupVersion, groups []groupVersion) {
	all := []groupVersion{{GroupVersion: schema.GroupVersion{Version: "v1"}}}
	find := func(gv schema.GroupVersion) *groupVersion {
		for i := range all {
			if all[i].GroupVersion == gv {
				return &all[i]
			}
		}
		all = append(all, groupVersion{GroupVersion: gv})
		return &all[len(all)-1]
	}
	for _, k := range kinds {
		find(k.GVK.GroupVersion()).addKind(k)
	}
	for _, v := range virtualResources {
		find(v.gvr.GroupVersion()).addVirtual(v)
	}
	return all[0], all[1:]
}

func (g *groupVersion) addKind(k *resource.Kind) {
	g.plain = append(g.plain, metav1.APIResource{
		Name: k.Resource, SingularName: k.Singular, Namespaced: k.Namespaced, Kind: k.GVK.Kind,
		Verbs: k.Verbs, ShortNames: k.ShortNames, Categories: k.Categories,
	})
	scope := apidiscoveryv2.ScopeCluster
	if k.Namespaced {
		scope = apidiscoveryv2.ScopeNamespace
	}
	entry := apidiscoveryv2.APIResourceDiscovery{
		Resource: k.Resource, ResponseKind: responseKind(k.GVK), Scope: scope, SingularResource: k.Singular,
		Verbs: k.Verbs, ShortNames: k.ShortNames, Categories: k.Categories,
	}
	for _, sub := range k.Subresources {
		plain := metav1.APIResource{Name: k.Resource + "/" + sub.Name, Namespaced: k.Namespaced, Kind: sub.GVK.Kind, Verbs: sub.Verbs}
		if sub.GVK.GroupVersion() != g.GroupVersion {
			plain.Group, plain.Version = sub.GVK.Group, sub.GVK.Version
		}
		g.plain = append(g.plain, plain)
		entry.Subresources = append(entry.Subresources, apidiscoveryv2.APISubresourceDiscovery{
			Subresource: sub.Name, ResponseKind: responseKind(sub.GVK), Verbs: sub.Verbs,
		})
	}
	g.aggregated = append(g.aggregated, entry)
}

func (g *groupVersion) addVirtual(v virtualResource) {
	gvk, verbs := v.gvk(), []string{"create"}
	g.plain = append(g.plain, metav1.APIResource{
		Name: v.gvr.Resource, SingularName: v.singular, Kind: gvk.Kind, Verbs: verbs,
	})
	g.aggregated = append(g.aggregated, apidiscoveryv2.APIResourceDiscovery{
		Resource: v.gvr.Resource, ResponseKind: responseKind(gvk), Scope: apidiscoveryv2.ScopeCluster,
		SingularResource: v.singular, Verbs: verbs,
	})
}

func responseKind(gvk schema.GroupVersionKind) *metav1.GroupVersionKind {
	return &metav1.GroupVersionKind{Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind}
}

// aggregate is the aggregated document of some group versions.
func aggregate(list []groupVersion) *apidiscoveryv2.APIGroupDiscoveryList {
	doc := &apidiscoveryv2.APIGroupDiscoveryList{Items: []apidiscoveryv2.APIGroupDiscovery{}}
	for _, gv := range list {
		doc.Items = append(doc.Items, apidiscoveryv2.APIGroupDiscovery{
			ObjectMeta: metav1.ObjectMeta{Name: gv.Group},
			Versions: []apidiscoveryv2.APIVersionDiscovery{{
				Version: gv.Version, Resources: gv.aggregated, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent,
			}},
		})
	}
	return doc
}

func apiGroupList(groups []groupVersion) *metav1.APIGroupList {
	list := &metav1.APIGroupList{Groups: []metav1.APIGroup{}}
	for _, gv := range groups {
		group := apiGroup(gv)
		group.TypeMeta = metav1.TypeMeta{} // entries of a list carry none
		list.Groups = append(list.Groups, group)
	}
	return list
}

func apiGroup(gv groupVersion) metav1.APIGroup {
	version := metav1.GroupVersionForDiscovery{GroupVersion: gv.GroupVersion.String(), Version: gv.Version}
	return metav1.APIGroup{Name: gv.Group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version}
}
