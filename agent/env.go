package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/shepherd-project/shepherd/agent/volume"
)

// errConfig marks what keeps a container from being created until somebody
// changes the pod's spec or what it refers to.
var errConfig = errors.New("container configuration")

// environment is a container's variables in the order they were given.
type environment struct {
	names  []string
	values map[string]string
}

func (e *environment) set(name, value string) {
	if _, ok := e.values[name]; !ok {
		e.names = append(e.names, name)
	}
	e.values[name] = value
}

func (e *environment) lookup(name string) (string, bool) {
	v, ok := e.values[name]
	return v, ok
}

// list returns NAME=VALUE for each variable.
func (e *environment) list() []string {
	out := make([]string, 0, len(e.names))
	for _, n := range e.names {
		out = append(out, n+"="+e.values[n])
	}
	return out
}

// envSource gives what variables can refer to.
type envSource struct {
	objects       volume.Objects
	podIP, hostIP string
	capacity      corev1.ResourceList
}

// build returns the variables of a container: those of envFrom first, then
// env, each of which may use $(NAME) of those before it.
func (s *envSource) build(ctx context.Context, pod *corev1.Pod, c *corev1.Container) (*environment, error) {
	env := &environment{values: map[string]string{}}
	for i := range c.EnvFrom {
		data, err := s.envFrom(ctx, pod, &c.EnvFrom[i])
		if err != nil {
			return nil, err
		}
		for _, k := range slices.Sorted(maps.Keys(data)) {
			name := c.EnvFrom[i].Prefix + k
			if len(validation.IsRelaxedEnvVarName(name)) > 0 {
				continue // cannot be a variable's name: left out, as upstream does
			}
			env.set(name, data[k])
		}
	}
	for i := range c.Env {
		v := &c.Env[i]
		if v.ValueFrom == nil {
			env.set(v.Name, expand(v.Value, env.lookup))
			continue
		}
		value, ok, err := s.valueFrom(ctx, pod, c, v.ValueFrom)
		if err != nil {
			return nil, fmt.Errorf("%w: variable %s: %w", errConfig, v.Name, err)
		}
		if ok {
			env.set(v.Name, value)
		}
	}
	return env, nil
}

func (s *envSource) envFrom(ctx context.Context, pod *corev1.Pod, from *corev1.EnvFromSource) (map[string]string, error) {
	data := map[string]string{}
	var err error
	var optional *bool
	switch {
	case from.ConfigMapRef != nil:
		var cm *corev1.ConfigMap
		optional = from.ConfigMapRef.Optional
		if cm, err = s.objects.ConfigMap(ctx, pod.Namespace, from.ConfigMapRef.Name); err == nil {
			data = cm.Data
		}
	case from.SecretRef != nil:
		var secret *corev1.Secret
		optional = from.SecretRef.Optional
		if secret, err = s.objects.Secret(ctx, pod.Namespace, from.SecretRef.Name); err == nil {
			for k, v := range secret.Data {
				data[k] = string(v)
			}
		}
	}
	if err != nil && !(apierrors.IsNotFound(err) && isTrue(optional)) {
		return nil, fmt.Errorf("%w: %w", errConfig, err)
	}
	return data, nil
}

// valueFrom returns a referenced value; ok is false for an optional reference
// to what does not exist.
func (s *envSource) valueFrom(ctx context.Context, pod *corev1.Pod, c *corev1.Container, from *corev1.EnvVarSource) (value string, ok bool, err error) {
	switch {
	case from.FieldRef != nil:
		value, err = podField(pod, from.FieldRef.FieldPath, s.podIP, s.hostIP)
		return value, true, err
	case from.ResourceFieldRef != nil:
		value, err = resourceField(pod, c.Name, from.ResourceFieldRef, s.capacity)
		return value, true, err
	case from.ConfigMapKeyRef != nil:
		ref := from.ConfigMapKeyRef
		cm, err := s.objects.ConfigMap(ctx, pod.Namespace, ref.Name)
		if err == nil {
			if value, ok = cm.Data[ref.Key]; ok {
				return value, true, nil
			}
			err = fmt.Errorf("couldn't find key %v in ConfigMap %v/%v", ref.Key, pod.Namespace, ref.Name)
		} else if !apierrors.IsNotFound(err) {
			return "", false, err
		}
		return "", false, unlessOptional(ref.Optional, err)
	case from.SecretKeyRef != nil:
		ref := from.SecretKeyRef
		secret, err := s.objects.Secret(ctx, pod.Namespace, ref.Name)
		if err == nil {
			if data, ok := secret.Data[ref.Key]; ok {
				return string(data), true, nil
			}
			err = fmt.Errorf("couldn't find key %v in Secret %v/%v", ref.Key, pod.Namespace, ref.Name)
		} else if !apierrors.IsNotFound(err) {
			return "", false, err
		}
		return "", false, unlessOptional(ref.Optional, err)
	}
	return "", false, errors.New("unknown source")
}

func unlessOptional(optional *bool, err error) error {
	if isTrue(optional) {
		return nil
	}
	return err
}

func isTrue(b *bool) bool { return b != nil && *b }

// command returns what a container runs: the pod's command and arguments in
// the place of the image's entry point and command.
func command(c *corev1.Container, entrypoint, cmd []string, env *environment) ([]string, error) {
	args := expandAll(c.Args, env.lookup)
	var out []string
	switch {
	case len(c.Command) > 0:
		out = slices.Concat(expandAll(c.Command, env.lookup), args)
	case len(c.Args) > 0:
		out = slices.Concat(entrypoint, args)
	default:
		out = slices.Concat(entrypoint, cmd)
	}
	if len(out) == 0 || strings.TrimSpace(out[0]) == "" {
		return nil, fmt.Errorf("%w: no command specified, and the image names none", errConfig)
	}
	return out, nil
}

// mergeEnv puts the container's variables over those of the image.
func mergeEnv(image []string, env *environment) []string {
	var out []string
	for _, kv := range image {
		name, _, _ := strings.Cut(kv, "=")
		if _, ok := env.values[name]; !ok {
			out = append(out, kv)
		}
	}
	return append(out, env.list()...)
}
