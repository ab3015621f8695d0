// Command teller prints for every input line its clocks and the result of a write and sync.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"time"
)

func main() {
	began := time.Now()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		wall, since, sub := time.Now().UnixNano(), time.Since(began).Nanoseconds(), time.Now().Sub(began).Nanoseconds()
		fmt.Println(wall, since, sub, strings.ReplaceAll(write(os.Args[1]), " ", "-"))
	}
}

func write(name string) string {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("text"), 0); err != nil {
		return err.Error()
	}
	if err := f.Sync(); err != nil {
		return err.Error()
	}
	return "written"
}
