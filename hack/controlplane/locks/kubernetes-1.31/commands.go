//go:build commands

// Package commands keeps the two commands in the module graph, so that go.sum locks all they are built from.
package commands

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
)
