// Command cost does the work whose time README.md has beside that of bindings/c/examples/cost.rs.
//
// usage: cost EMPTY_FOLDER get|put|get-one|put-one TIMES
package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"
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
	sum, err := run(context.Background(), os.Args[1], os.Args[2], times)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(sum)
}

func run(ctx context.Context, dir, work string, times int) (sum uint64, err error) {
	store, err := terrane.Open(ctx, dir, terrane.CreateDir(), terrane.WithDurability(terrane.None))
	if err != nil {
		return 0, err
	}
	table, err := store.CreateTable(ctx, "main")
	if err != nil {
		return 0, err
	}
	var keys, values terrane.Rows
	for row := range rows {
		key := bytes.Repeat([]byte{byte(row * 37)}, keyBytes)
		key[1] = byte(row)
		keys.Append(key)
		values.Append(bytes.Repeat([]byte{byte(row)}, valueBytes))
	}
	var batch terrane.Batch
	fill := func() {
		batch.Reset()
		for row := range rows {
			batch.Put(table, keys.At(row), values.At(row))
		}
	}
	fill()
	if _, err := store.Write(ctx, &batch); err != nil {
		return 0, err
	}

	var answers terrane.Answers
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
		default:
			fill()
			_, err = store.Write(ctx, &batch)
		}
		if err != nil {
			return 0, err
		}
	}
	if err := table.Close(); err != nil {
		return 0, err
	}
	return sum, store.Close()
}
