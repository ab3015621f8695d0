// Command teller prints for every line it reads its wall clock in Unix nanoseconds and how long it has run by monotonic time.
package main

import (
	"bufio"
	"fmt"
	"os"
	"time"
)

func main() {
	began := time.Now()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println(time.Now().UnixNano(), time.Since(began).Nanoseconds(), time.Now().Sub(began).Nanoseconds())
	}
}
