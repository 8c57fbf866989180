// Verify a checkpoint, and the proof that it is continued, with the packages of Go's checksum database:
//
//	go run . KEYFILE CHECKPOINT [PROOF]
//
// PROOF is what penstock audit checkpoint --continues writes. Exit status 9: something does not hold.
package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(9)
	}
}

type tree struct {
	origin string
	size   int64
	root   tlog.Hash
}

func open(text []byte, verifier note.Verifier) tree {
	opened, err := note.Open(text, note.VerifierList(verifier))
	fail(err)
	lines := strings.Split(opened.Text, "\n")
	size, err := strconv.ParseInt(lines[1], 10, 64)
	fail(err)
	root, err := tlog.ParseHash(lines[2])
	fail(err)
	return tree{lines[0], size, root}
}

func main() {
	key, err := os.ReadFile(os.Args[1])
	fail(err)
	verifier, err := note.NewVerifier(strings.TrimSpace(string(key)))
	fail(err)
	text, err := os.ReadFile(os.Args[2])
	fail(err)
	found := open(text, verifier)
	fmt.Printf("%s has %d entries, root %s\n", found.origin, found.size, found.root)
	if len(os.Args) < 4 {
		return
	}
	data, err := os.ReadFile(os.Args[3])
	fail(err)
	var document struct {
		Checkpoints []string
		Proof       []string
	}
	fail(json.Unmarshal(data, &document))
	old, new := open([]byte(document.Checkpoints[0]), verifier), open([]byte(document.Checkpoints[1]), verifier)
	var proof tlog.TreeProof
	for _, item := range document.Proof {
		raw, err := base64.StdEncoding.DecodeString(item)
		fail(err)
		proof = append(proof, tlog.Hash(raw))
	}
	fail(tlog.CheckTree(proof, new.size, new.root, old.size, old.root))
	fmt.Printf("the log of %d entries continues that of %d entries\n", new.size, old.size)
}
