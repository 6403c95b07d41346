package main

import (
	"fmt"
	"syscall"
)

// descriptorLimit is how many files this process may have open. Go has raised
// that to what the kernel allows when the program began.
func descriptorLimit() (uint64, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	return limit.Cur, nil
}
