// Package pki is the cluster's certificate authority, its certificates by
// role, and the tokens that let a machine join.
//
// A cluster has one CA, made at bootstrap. Its certificate names the cluster,
// every server holds its key and can issue, so no server is special:
//
//	cluster CA   shepherd://CLUSTER/ca          10 years
//	  server     shepherd://CLUSTER/server/ID   serves the port, speaks Raft and links
//	  agent      shepherd://CLUSTER/agent/NODE  CN=system:node:NODE O=system:nodes
//	  admin      shepherd://CLUSTER/admin/NAME  CN=shepherd-admin O=system:masters
//
// The URI decides what a certificate may do; the subject is only the user and
// group that the Kubernetes API shows. Certificates start 48 hours in the
// past, because clocks of joining machines are wrong, and are renewed at half
// of their life by whoever holds them.
//
// A machine joins with a token, shp1.ROLE.CAPIN.ID.SECRET. CAPIN is the hash
// of the CA's public key: the joiner checks it against the server it reached
// before it sends the secret. The cluster keeps a hash of the secret alone.
package pki
