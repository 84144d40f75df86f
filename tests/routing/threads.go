// SPDX-License-Identifier: Apache-2.0 OR MIT

// A program in Go that knows nothing of Backstay: "write" writes out/r.0 to out/r.39 in many goroutines, "read" finds
// them.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

func check(err error) {
	if err != nil {
		fmt.Println("bad", err)
		os.Exit(3)
	}
}

func write(at int) {
	name := fmt.Sprintf("out/r.%d", at)
	text := []byte(fmt.Sprintf("file %d", at))
	for round := 0; round < 20; round++ {
		check(os.WriteFile(name+".new", text, 0o644))
		check(os.Rename(name+".new", name))
		about, err := os.Stat(name)
		check(err)
		if about.Size() != int64(len(text)) {
			check(fmt.Errorf("%s has %d bytes", name, about.Size()))
		}
	}
}

func main() {
	if os.Args[1] == "write" {
		var all sync.WaitGroup
		for at := 0; at < 40; at++ {
			all.Add(1)
			go func() {
				defer all.Done()
				write(at)
			}()
		}
		all.Wait()
	}
	names, err := filepath.Glob("out/r.*")
	check(err)
	if len(names) != 40 {
		check(fmt.Errorf("%d names: %v", len(names), names))
	}
	for at := 0; at < 40; at++ {
		text, err := os.ReadFile(fmt.Sprintf("out/r.%d", at))
		check(err)
		if string(text) != fmt.Sprintf("file %d", at) {
			check(fmt.Errorf("file %d has %q", at, text))
		}
	}
}
