package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sort"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

const envPrefix = "SHEPHERD_"

// load reads the flags, then the environment for what no flag gave, then the
// file for what neither gave. Every unknown key and bad value is an error that
// names it. pflag.ErrHelp is returned for --help.
func (s *settings) load(args, environ []string) error {
	if err := s.flags.Parse(args); err != nil {
		return err
	}
	if rest := s.flags.Args(); len(rest) > 0 {
		return fmt.Errorf("unexpected argument %q", rest[0])
	}
	s.flags.Visit(func(f *pflag.Flag) { s.set[f.Name] = "--" + f.Name })
	if err := s.loadEnvironment(environ); err != nil {
		return err
	}
	if s.ConfigFile != "" {
		if err := s.loadFile(s.ConfigFile); err != nil {
			return err
		}
	}
	return s.complete()
}

func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// loadEnvironment leaves unknown variables alone: others may use the prefix
// (a Service of that name makes SHEPHERD_SERVICE_HOST in every pod).
func (s *settings) loadEnvironment(environ []string) error {
	values := map[string]string{}
	for _, kv := range environ {
		if name, value, ok := strings.Cut(kv, "="); ok {
			values[name] = value
		}
	}
	var errs []error
	s.flags.VisitAll(func(f *pflag.Flag) {
		value, ok := values[envName(f.Name)]
		if !ok || s.isSet(f.Name) {
			return
		}
		if err := f.Value.Set(value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %q: %w", envName(f.Name), value, err))
			return
		}
		s.set[f.Name] = envName(f.Name)
	})
	return errors.Join(errs...)
}

func (s *settings) loadFile(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("configuration file: %w", err)
	}
	asJSON, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return fmt.Errorf("configuration file %s: %w", path, err)
	}
	var values map[string]any
	d := json.NewDecoder(bytes.NewReader(asJSON))
	d.UseNumber()
	if err := d.Decode(&values); err != nil {
		return fmt.Errorf("configuration file %s: it must be a list of KEY: VALUE (%w)", path, err)
	}
	keys := make([]string, 0, len(values))
	for key := range values {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	var errs []error
	for _, key := range keys {
		if err := s.setFromFile(path, key, values[key]); err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %w", path, key, err))
		}
	}
	return errors.Join(errs...)
}

var errUnknownKey = errors.New("there is no such setting")

func (s *settings) setFromFile(path, key string, value any) error {
	f := s.flags.Lookup(key)
	if f == nil || key == "config" {
		return errUnknownKey
	}
	items, err := asText(value)
	if err != nil {
		return err
	}
	if s.isSet(key) {
		return nil
	}
	list, isList := f.Value.(pflag.SliceValue)
	switch {
	case isList:
		err = list.Replace(splitItems(items, value))
	case f.Value.Type() == "stringToString" || f.Value.Type() == "taints":
		err = f.Value.Set(strings.Join(items, ","))
	case len(items) != 1:
		err = fmt.Errorf("it takes one value, not a list of %d", len(items))
	default:
		err = f.Value.Set(items[0])
	}
	if err != nil {
		return fmt.Errorf("%q: %w", strings.Join(items, ","), err)
	}
	s.set[key] = path + ": " + key
	return nil
}

// splitItems lets a list be written as on the command line, too: "a,b".
func splitItems(items []string, value any) []string {
	if _, isString := value.(string); isString && len(items) == 1 {
		if items[0] == "" {
			return nil
		}
		return strings.Split(items[0], ",")
	}
	return items
}

// asText gives a YAML value as the texts that a flag takes: one for a scalar,
// one for each item of a list, KEY=VALUE for each pair of a mapping.
func asText(value any) ([]string, error) {
	switch v := value.(type) {
	case string:
		return []string{v}, nil
	case json.Number:
		return []string{v.String()}, nil
	case bool:
		return []string{fmt.Sprint(v)}, nil
	case []any:
		var out []string
		for _, item := range v {
			text, err := asText(item)
			if err != nil || len(text) != 1 {
				return nil, errors.New("the items of the list must be plain values")
			}
			out = append(out, text[0])
		}
		return out, nil
	case map[string]any:
		var out []string
		for key, item := range v {
			text, err := asText(item)
			if err != nil || len(text) != 1 {
				return nil, fmt.Errorf("%s must be a plain value", key)
			}
			out = append(out, key+"="+text[0])
		}
		sort.Strings(out)
		return out, nil
	default:
		return nil, errors.New("a value is missing")
	}
}
