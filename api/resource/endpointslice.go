package resource

import (
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// Limits of an EndpointSlice, as in Kubernetes.
const (
	maxEndpoints         = 1000
	maxEndpointPorts     = 20000
	maxEndpointAddresses = 100
	shownEndpoints       = 3
)

var endpointSliceDoc = discoveryv1.EndpointSlice{}.SwaggerDoc()

var endpointSliceKind = define(
	Kind{
		GVK: discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), Resource: "endpointslices", Singular: "endpointslice",
		Namespaced: true, UnconditionalUpdate: true,
	},
	func() *discoveryv1.EndpointSlice { return &discoveryv1.EndpointSlice{} },
	func() runtime.Object { return &discoveryv1.EndpointSliceList{} },
	typed[*discoveryv1.EndpointSlice]{
		name: apivalidation.NameIsDNSSubdomain,
		defaults: func(s *discoveryv1.EndpointSlice) {
			for i := range s.Ports {
				p := &s.Ports[i]
				if p.Name == nil {
					p.Name = ptr.To("")
				}
				if p.Protocol == nil {
					p.Protocol = ptr.To(corev1.ProtocolTCP)
				}
			}
		},
		spec: func(s *discoveryv1.EndpointSlice) any {
			return discoveryv1.EndpointSlice{AddressType: s.AddressType, Endpoints: s.Endpoints, Ports: s.Ports}
		},
		validate: validateEndpointSlice,
		validateUpdate: func(n, o *discoveryv1.EndpointSlice) field.ErrorList {
			return apivalidation.ValidateImmutableField(n.AddressType, o.AddressType, field.NewPath("addressType"))
		},
		columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("AddressType", "string", endpointSliceDoc["addressType"]),
			column("Ports", "string", endpointSliceDoc["ports"]),
			column("Endpoints", "string", endpointSliceDoc["endpoints"]),
			ageColumn,
		},
		row: endpointSliceRow,
	},
)

func endpointSliceRow(s *discoveryv1.EndpointSlice, now time.Time) []any {
	var ports, addresses []string
	for _, p := range s.Ports {
		switch {
		case p.Port != nil:
			ports = append(ports, strconv.Itoa(int(*p.Port)))
		case p.Name != nil && *p.Name != "":
			ports = append(ports, *p.Name)
		default:
			ports = append(ports, "*")
		}
	}
	for _, e := range s.Endpoints {
		addresses = append(addresses, e.Addresses...)
	}
	return []any{
		s.Name, string(s.AddressType), firstOf(ports, shownEndpoints), firstOf(addresses, shownEndpoints),
		age(s.CreationTimestamp, now),
	}
}

func validateEndpointSlice(s *discoveryv1.EndpointSlice) field.ErrorList {
	var errs field.ErrorList
	supported := []discoveryv1.AddressType{discoveryv1.AddressTypeFQDN, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}
	typePath := field.NewPath("addressType")
	if s.AddressType == "" {
		errs = append(errs, field.Required(typePath, ""))
	} else if !sets.New(supported...).Has(s.AddressType) {
		errs = append(errs, field.NotSupported(typePath, s.AddressType, supported))
	}
	endpoints := field.NewPath("endpoints")
	if len(s.Endpoints) > maxEndpoints {
		return append(errs, field.TooMany(endpoints, len(s.Endpoints), maxEndpoints))
	}
	for i := range s.Endpoints {
		errs = append(errs, validateEndpoint(&s.Endpoints[i], s.AddressType, endpoints.Index(i))...)
	}
	return append(errs, validateEndpointPorts(s.Ports, field.NewPath("ports"))...)
}

func validateEndpoint(e *discoveryv1.Endpoint, addressType discoveryv1.AddressType, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	addresses := path.Child("addresses")
	switch n := len(e.Addresses); {
	case n == 0:
		errs = append(errs, field.Required(addresses, "must contain at least 1 address"))
	case n > maxEndpointAddresses:
		errs = append(errs, field.TooMany(addresses, n, maxEndpointAddresses))
	}
	for i, address := range e.Addresses {
		at := addresses.Index(i)
		if addressType == discoveryv1.AddressTypeFQDN {
			errs = append(errs, validation.IsFullyQualifiedDomainName(at, address)...)
			continue
		}
		ip, err := netip.ParseAddr(address)
		switch {
		case err != nil:
			errs = append(errs, field.Invalid(at, address, "must be a valid IP address"))
		case addressType == discoveryv1.AddressTypeIPv4 && !ip.Is4():
			errs = append(errs, field.Invalid(at, address, "must be an IPv4 address"))
		case addressType == discoveryv1.AddressTypeIPv6 && !ip.Is6():
			errs = append(errs, field.Invalid(at, address, "must be an IPv6 address"))
		case ip.IsUnspecified() || ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsMulticast():
			errs = append(errs, field.Invalid(at, address, "may not be an unspecified, loopback, link-local or multicast address"))
		}
	}
	if e.NodeName != nil {
		for _, message := range apivalidation.NameIsDNSSubdomain(*e.NodeName, false) {
			errs = append(errs, field.Invalid(path.Child("nodeName"), *e.NodeName, message))
		}
	}
	if e.Hostname != nil {
		for _, message := range validation.IsDNS1123Label(*e.Hostname) {
			errs = append(errs, field.Invalid(path.Child("hostname"), *e.Hostname, message))
		}
	}
	return errs
}

func validateEndpointPorts(ports []discoveryv1.EndpointPort, path *field.Path) field.ErrorList {
	if len(ports) > maxEndpointPorts {
		return field.ErrorList{field.TooMany(path, len(ports), maxEndpointPorts)}
	}
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, p := range ports {
		at := path.Index(i)
		name := ptr.Deref(p.Name, "")
		if name != "" {
			for _, message := range validation.IsDNS1123Label(name) {
				errs = append(errs, field.Invalid(at.Child("name"), name, message))
			}
		}
		if seen.Has(name) {
			errs = append(errs, field.Duplicate(at.Child("name"), name))
		}
		seen.Insert(name)
		errs = append(errs, validateProtocol(ptr.Deref(p.Protocol, corev1.ProtocolTCP), at.Child("protocol"))...)
		if p.Port != nil {
			errs = append(errs, validatePortNumber(int64(*p.Port), at.Child("port"))...)
		}
	}
	return errs
}
