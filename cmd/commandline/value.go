package commandline

import (
	"encoding"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// set gives the field the value of a text; elements are added to those that the field has.
func (v *Value) set(text string) error {
	texts := []string{text}
	if v.sep != "" {
		texts = split(text, v.sep[0])
	}
	for _, text := range texts {
		if v.Enum != nil && !slices.Contains(v.Enum, text) {
			return fmt.Errorf("must be one of %s but got %q", quotedList(v.Enum), text)
		}
		if v.Type != "" {
			path, err := existing(text, v.Type == "existingdir")
			if err != nil {
				return err
			}
			text = path
		}
		switch v.field.Kind() {
		case reflect.Slice:
			element := reflect.New(v.field.Type().Elem()).Elem()
			if err := decode(element, text); err != nil {
				return err
			}
			v.field.Set(reflect.Append(v.field, element))
		case reflect.Map: // of names
			key, value, ok := strings.Cut(text, "=")
			if !ok {
				return fmt.Errorf("expected \"<key>=<value>\" but got %q", text)
			}
			element := reflect.New(v.field.Type().Elem()).Elem()
			if err := decode(element, value); err != nil {
				return err
			}
			if v.field.IsNil() {
				v.field.Set(reflect.MakeMap(v.field.Type()))
			}
			v.field.SetMapIndex(reflect.ValueOf(key), element)
		default:
			if err := decode(v.field, text); err != nil {
				return err
			}
		}
	}
	return nil
}

func decode(to reflect.Value, text string) (err error) {
	bad := func(want string) error { return fmt.Errorf("expected %s but got %q", want, text) }
	switch to := to.Addr().Interface().(type) {
	case encoding.TextUnmarshaler:
		return to.UnmarshalText([]byte(text))
	case *time.Duration:
		if *to, err = time.ParseDuration(text); err != nil {
			return bad("a duration such as 300ms, 30s or 1h30m")
		}
		return nil
	}
	switch {
	case to.Kind() == reflect.Pointer: // nil if no line sets it
		to.Set(reflect.New(to.Type().Elem()))
		return decode(to.Elem(), text)
	case to.Kind() == reflect.String:
		to.SetString(text)
	case to.Kind() == reflect.Bool:
		switch strings.ToLower(text) {
		case "true", "1", "yes":
			to.SetBool(true)
		case "false", "0", "no":
			to.SetBool(false)
		default:
			return bad("true, 1, yes, false, 0 or no")
		}
	case to.CanInt():
		n, err := strconv.ParseInt(text, 0, to.Type().Bits())
		if err != nil {
			return bad("a whole number")
		}
		to.SetInt(n)
	case to.CanUint():
		n, err := strconv.ParseUint(text, 0, to.Type().Bits())
		if err != nil {
			return bad(fmt.Sprintf("a whole number from 0 to %d", ^uint64(0)>>(64-to.Type().Bits())))
		}
		to.SetUint(n)
	case to.CanFloat():
		n, err := strconv.ParseFloat(text, to.Type().Bits())
		if err != nil {
			return bad("a number")
		}
		to.SetFloat(n)
	default:
		panic("no flag or argument can be a " + to.Type().String()) // a defect of the struct
	}
	return nil
}

// split cuts a list; a backslash before a separator makes it a part of the element.
func split(text string, sep byte) (out []string) {
	var element []byte
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == sep:
			out, element = append(out, string(element)), nil
			continue
		case text[i] == '\\' && i+1 < len(text):
			if i++; text[i] != sep {
				element = append(element, '\\')
			}
		}
		element = append(element, text[i])
	}
	if len(element) > 0 {
		out = append(out, string(element))
	}
	return out
}

// existing returns the absolute path of a file or directory that exists; "-" stays, for stdin.
func existing(path string, dir bool) (string, error) {
	if path == "-" && !dir {
		return path, nil
	}
	if home, err := os.UserHomeDir(); err == nil && strings.HasPrefix(path, "~/") { // no shell expands it behind --flag=
		path = home + path[1:]
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", err
	case dir && !info.IsDir():
		return "", fmt.Errorf("%q exists but is not a directory", path)
	case !dir && info.IsDir():
		return "", fmt.Errorf("%q exists but is a directory", path)
	}
	return path, nil
}

func quotedList(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = strconv.Quote(w)
	}
	return strings.Join(quoted, ", ")
}
