package agent

import (
	"context"
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// knownObjects is one ConfigMap "cm" and one Secret "s".
type knownObjects struct{}

func (knownObjects) ConfigMap(_ context.Context, _, name string) (*corev1.ConfigMap, error) {
	if name != "cm" {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, name)
	}
	return &corev1.ConfigMap{Data: map[string]string{"key": "value", "no good=": "x"}}, nil
}

func (knownObjects) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	if name != "s" {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, name)
	}
	return &corev1.Secret{Data: map[string][]byte{"pw": []byte("hush")}}, nil
}

func TestEnvironment(t *testing.T) {
	yes := true
	named := func(n string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: n} }
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns", Labels: map[string]string{"app": "x"}}}
	c := corev1.Container{Name: "c",
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m")}},
		EnvFrom: []corev1.EnvFromSource{
			{Prefix: "CM_", ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: named("cm")}},
			{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: named("absent"), Optional: &yes}},
		},
		Env: []corev1.EnvVar{
			{Name: "A", Value: "1"},
			{Name: "B", Value: "$(A)$(LATER)$$(A)"},
			{Name: "LATER", Value: "2"},
			{Name: "PW", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: named("s"), Key: "pw"}}},
			{Name: "GONE", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: named("cm"), Key: "none", Optional: &yes}}},
			{Name: "IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}},
			{Name: "APP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['app']"}}},
			{Name: "CPU", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"}}},
		}}
	pod.Spec.Containers = []corev1.Container{c}
	source := envSource{objects: knownObjects{}, podIP: "10.0.0.2"}
	env, err := source.build(t.Context(), pod, &c)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"CM_key=value", "A=1", "B=1$(LATER)$(A)", "LATER=2", "PW=hush", "IP=10.0.0.2", "APP=x", "CPU=1"}
	if !slices.Equal(env.list(), want) {
		t.Errorf("variables %q, want %q", env.list(), want)
	}
	if got := mergeEnv([]string{"PATH=/bin", "A=image"}, env); got[0] != "PATH=/bin" || got[1] != "CM_key=value" {
		t.Errorf("merged %q", got)
	}
	for _, bad := range []corev1.EnvVar{
		{Name: "X", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: named("absent"), Key: "k"}}},
		{Name: "X", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: named("cm"), Key: "none"}}},
		{Name: "X", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.secret"}}},
	} {
		if _, err := source.build(t.Context(), pod, &corev1.Container{Name: "c", Env: []corev1.EnvVar{bad}}); !errors.Is(err, errConfig) {
			t.Errorf("error %v, want errConfig", err)
		}
	}
}

func TestCommand(t *testing.T) {
	env := &environment{values: map[string]string{"V": "v"}}
	entry, cmd := []string{"/entry"}, []string{"cmd"}
	for _, c := range []struct{ command, args, want []string }{
		{nil, nil, []string{"/entry", "cmd"}},
		{nil, []string{"$(V)"}, []string{"/entry", "v"}},
		{[]string{"/own"}, nil, []string{"/own"}},
		{[]string{"/own"}, []string{"x"}, []string{"/own", "x"}},
	} {
		got, err := command(&corev1.Container{Command: c.command, Args: c.args}, entry, cmd, env)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%v %v: %v, %v", c.command, c.args, got, err)
		}
	}
	if _, err := command(&corev1.Container{}, nil, nil, env); !errors.Is(err, errConfig) {
		t.Errorf("error %v, want errConfig", err)
	}
}

func TestNonRoot(t *testing.T) {
	for user, ok := range map[string]bool{"": false, "0": false, "0:5": false, "root": false, "web": false, "7": true, "7:0": true} {
		if err := checkNonRoot(true, user); (err == nil) != ok {
			t.Errorf("user %q: %v", user, err)
		}
	}
}
