// Package api is the HTTP server of the control plane: the Kubernetes API on
// the wire, served by every replica.
//
// Reads and watches are answered from this replica's own store. A read without
// an explicit resourceVersion first asks for a read index, so that what a
// client sees never goes back when it moves from one replica to another.
// Writes are buffered whole and forwarded to the leader, which decides and
// proposes them; the package knows the consensus only through the small
// interfaces declared in server.go.
//
// The life of a request:
//
//	ServeHTTP        identity, size limit, metrics, panic recovery
//	  parseRequest   path, method and query -> requestInfo
//	  authorize      may this identity do that
//	  serveGet | serveList | serveWatch | serveLogs | serveWrite | serveDiscovery ...
//	  negotiate      Accept -> JSON, YAML or protobuf; object, Table or metadata alone
package api
