// Command cost does the work whose cost README.md has beside that of bindings/c/examples/cost.rs,
// which describes the work and the output.
//
// usage: cost EMPTY_FOLDER get|put|get-one|put-one TIMES
package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"
	"runtime"
	"strconv"

	"terrane"
)

const (
	rows       = 256
	keyBytes   = 32
	valueBytes = 60
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: cost EMPTY_FOLDER get|put|get-one|put-one TIMES")
	}
	times, err := strconv.Atoi(os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	if err := run(context.Background(), os.Args[1], os.Args[2], times); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, dir, work string, times int) error {
	store, err := terrane.Open(ctx, dir, terrane.CreateDir(), terrane.WithDurability(terrane.None))
	if err != nil {
		return err
	}
	table, err := store.CreateTable(ctx, "main")
	if err != nil {
		return err
	}
	var keys, values terrane.Rows
	for row := range rows {
		key := bytes.Repeat([]byte{byte(row * 37)}, keyBytes)
		key[1] = byte(row)
		keys.Append(key)
		values.Append(bytes.Repeat([]byte{byte(row)}, valueBytes))
	}
	var batch terrane.Batch
	fill := func() error {
		batch.Reset()
		return batch.PutMany(table, &keys, &values)
	}
	if err := fill(); err != nil {
		return err
	}
	if _, err := store.Write(ctx, &batch); err != nil {
		return err
	}

	var answers terrane.Answers
	var sum uint64
	for time := range times {
		row := time % rows
		switch work {
		case "get":
			err = table.GetMany(ctx, &keys, &answers)
			for _, value := range answers.All() {
				sum += uint64(value[0])
			}
		case "get-one":
			var value []byte
			if value, _, err = table.Get(ctx, keys.At(row)); err == nil {
				sum += uint64(value[0])
			}
		case "put-one":
			_, err = table.Put(ctx, keys.At(row), values.At(row))
		case "put":
			if err = fill(); err == nil {
				_, err = store.Write(ctx, &batch)
			}
		default:
			err = fmt.Errorf("%s: no such work", work)
		}
		if err != nil {
			return err
		}
	}

	if err := table.GetMany(ctx, &keys, &answers); err != nil {
		return err
	}
	fold := uint64(0xcbf29ce484222325)
	for _, value := range answers.All() {
		for _, one := range value {
			fold = (fold ^ uint64(one)) * 0x100000001b3
		}
	}
	fmt.Printf("%016x\n", fold)
	runtime.KeepAlive(sum)
	if err := table.Close(); err != nil {
		return err
	}
	return store.Close()
}
