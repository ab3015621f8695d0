//go:build linux

package programs

import (
	"bytes"
	"embed"
	"errors"
	"os"
	"path/filepath"
	"text/template"
)

//go:embed nginx.cfg haproxy.cfg
var files embed.FS

var configs = template.Must(template.ParseFS(files, "*.cfg"))

// Setting is what the configurations of nginx and HAProxy depend on.
type Setting struct {
	Dir string // for the files of one process
	// Addrs are the addresses to listen on. nginx does not buffer answers of the second, which suits
	// streams; HAProxy listens on the first alone.
	Addrs    []string
	Backends []string // host:port
	Threads  int      // workers of nginx
	Balance  string   // lines that choose a backend; nginx's default if empty
}

// Root tells nginx whether it may keep its user.
func (Setting) Root() bool { return os.Geteuid() == 0 }

// Configure writes the configuration of nginx or haproxy, and returns its text and how to start the
// program in the foreground.
func Configure(program string, s Setting) (text string, argv []string, err error) {
	var b bytes.Buffer
	path := filepath.Join(s.Dir, program+".cfg")
	err = configs.ExecuteTemplate(&b, program+".cfg", s)
	if err := errors.Join(err, os.WriteFile(path, b.Bytes(), 0o644)); err != nil {
		return "", nil, err
	}
	argv = []string{"haproxy", "-db", "-f", path}
	if program == "nginx" {
		argv = []string{"nginx", "-c", path, "-e", filepath.Join(s.Dir, "nginx.err")}
	}
	return b.String(), argv, nil
}
