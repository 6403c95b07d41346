// Package definitions holds the OpenAPI definitions of the Kubernetes types,
// generated from their source. Only the generator of the served documents
// links it: see package openapi.
package definitions
