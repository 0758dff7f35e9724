// Proofs, checked against a root that the caller trusts. No store is needed, and no I/O is done.

package terrane

// #include "terrane.h"
import "C"

// VerifyRadix checks a proof of a radix state and fills out with the values of the addresses, which
// must be those of the proof. A proof of anything else is ErrInvalidProof.
func VerifyRadix(root Root, proof []byte, addresses *Rows, out *Answers) error {
	count, bytes, offsets := addresses.c()
	proofBytes, proofLength := cBytes(proof)
	return out.fill(addresses.Len(), func(to answers) error {
		return call(func() code {
			return code(C.terrane_radix_verify(root.c(), C.size_t(len(root)), proofBytes, proofLength,
				count, bytes, offsets, to.values, to.capacity, to.offsets, to.found))
		})
	})
}

// VerifyContext checks a proof of a context tree and fills out with the values of the paths. A path
// that the proof does not show, and a proof of anything else, are ErrInvalidProof.
func VerifyContext(root Root, proof []byte, paths *Rows, out *Answers) error {
	count, bytes, offsets := paths.c()
	proofBytes, proofLength := cBytes(proof)
	return out.fill(paths.Len(), func(to answers) error {
		return call(func() code {
			return code(C.terrane_context_verify(root.c(), proofBytes, proofLength, count, bytes, offsets,
				to.values, to.capacity, to.offsets, to.found))
		})
	})
}

// VerifyMPT checks the nodes on the path of a key of a Merkle-Patricia trie, from the root down,
// and returns the value of the key and whether there is one. Keys are those of the trie: a secure
// trie has hashed ones. Nodes that prove neither are ErrInvalidProof.
func VerifyMPT(root Root, key []byte, nodes *Rows) (value []byte, found bool, err error) {
	var out Answers
	count, bytes, offsets := nodes.c()
	keyBytes, keyLength := cBytes(key)
	return out.one(out.fill(1, func(to answers) error {
		return call(func() code {
			return code(C.terrane_mpt_verify(root.c(), keyBytes, keyLength, count, bytes, offsets,
				to.values, to.capacity, to.offsets, to.found))
		})
	}))
}

// VerifyCommitted checks a proof of [CommittedTable.Prove]: as [VerifyMPT], but for a key as the
// table has it.
func VerifyCommitted(root Root, key []byte, nodes *Rows) (value []byte, found bool, err error) {
	var out Answers
	count, bytes, offsets := nodes.c()
	keyBytes, keyLength := cBytes(key)
	return out.one(out.fill(1, func(to answers) error {
		return call(func() code {
			return code(C.terrane_committed_verify(root.c(), keyBytes, keyLength, count, bytes, offsets,
				to.values, to.capacity, to.offsets, to.found))
		})
	}))
}
