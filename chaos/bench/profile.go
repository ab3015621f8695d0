//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// startProfile writes a CPU profile of a contender during one measurement to options.profiles,
// replacing earlier rounds. The channel yields one error or nil when written, at once if no profile
// is wanted. Profiling costs the contender a percent or two.
func startProfile(ctx context.Context, o options, x *contender, name string) <-chan error {
	done := make(chan error, 1)
	if o.profiles == "" || x.admin == "" {
		done <- nil
		return done
	}
	go func() {
		done <- writeProfile(ctx, x.admin, o.duration, filepath.Join(o.profiles, x.Name+"-"+name+".pprof"))
	}()
	return done
}

func writeProfile(ctx context.Context, admin string, d time.Duration, path string) error {
	url := fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", admin, max(1, int(d.Seconds())))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("profile: %s", resp.Status)
	}
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, raw, 0o644)
}
