// Package seal encrypts what a server keeps on its disk: log entries and
// snapshots, with AES-256-GCM under the cluster's data keys.
//
//	data key (32 random bytes, named by a random uint32)
//	   └─ HKDF-SHA256(salt, use) ─> subkey of one run of one server, or of one snapshot
//
// An entry is sealed once, by the leader, and every member stores those bytes:
//
//	byte  0      version of the entry's own format, as it was
//	bytes 1-4    key ID, big endian; 0 says that the rest is plain
//	bytes 5-20   salt
//	bytes 21-28  counter, big endian: the nonce
//	bytes 29-    the sealed rest of the entry, and a tag of 16 bytes
//
// A snapshot is sealed as it streams by, in chunks of 64 KiB:
//
//	bytes 0-11   magic and version of the snapshot's own format, as they were
//	bytes 12-15  key ID, big endian; 0 says that the rest is plain
//	bytes 16-31  salt
//	chunks       each sealed with its number and whether it is the last one, and a tag
//
// The headers are authenticated with what follows them. A nonce never comes
// twice under one subkey: it is a counter, and a new salt is drawn by every
// process, for every snapshot, and after 2^32 entries or 2^40 bytes. Two equal
// salts of 128 random bits are not to be expected. What has no key or was
// changed by a single bit, cut short or put together in another order is
// refused, never skipped.
//
// What this does not do: whoever can write to the disk can still put an older
// file in a newer one's place, and the keys lie in the data directory too, so
// that a server starts by itself after a power cut. It protects copies of log
// and snapshots, the disks' free pages, and data directories without the key file.
package seal
