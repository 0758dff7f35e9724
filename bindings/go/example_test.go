// The example of README.md, compiled and run.

package terrane_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"terrane"
)

func Example() {
	dir, err := os.MkdirTemp("", "terrane")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := run(context.Background(), dir); err != nil {
		log.Fatal(err)
	}
	// Output:
	// alice 100
	// bob 7
}

func run(ctx context.Context, dir string) error {
	store, err := terrane.Open(ctx, dir, terrane.CreateDir())
	if err != nil {
		return err
	}
	defer store.Close()
	accounts, err := store.CreateTable(ctx, "accounts")
	if err != nil {
		return err
	}
	defer accounts.Close()

	var batch terrane.Batch
	batch.Put(accounts, []byte("alice"), []byte("100"))
	batch.Put(accounts, []byte("bob"), []byte("7"))
	commit, err := store.Write(ctx, &batch) // atomic
	if err != nil {
		return err
	}
	if err := store.Sync(ctx, commit); err != nil { // durable from here on
		return err
	}
	scan := accounts.Scan(ctx, terrane.Range{})
	for key, value := range scan.All() {
		fmt.Printf("%s %s\n", key, value)
	}
	return scan.Err()
}
