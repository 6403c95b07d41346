// Package resource is everything the API knows about its kinds: names,
// defaults, preparation, validation, field selectors, table columns and
// subresources, one file per kind, and the codecs between typed objects and
// the bytes of the store.
//
// # Kinds
//
// All lists the kinds; ByResource, ByGroupResource, ByKind and ForObject find
// one. A Kind is data and functions over runtime.Object, so a kind without a
// Go type can stand in the same table with New returning unstructured objects.
// Everything here is immutable after package initialisation and safe for
// concurrent use.
//
// # The order of a write
//
// A create is: decode, Default, SetCreated, PrepareForCreate, admission,
// Validate, CreateOp. An update is: decode, Default, PrepareForUpdate (or
// PrepareForStatusUpdate), ValidateUpdate (or ValidateStatusUpdate), UpdateOp.
// Functions that take a new and an old object may change the new one only.
//
// # Bytes
//
// Encode writes the protobuf envelope of Kubernetes without resourceVersion;
// equal objects give equal bytes. Decode and Decoder read it back and set the
// resourceVersion from the object's revision. What a Decoder returns is shared
// and read-only.
package resource
