//go:build commands

// Package commands keeps etcd in the module graph, so that go.sum locks all it is built from.
package commands

import _ "go.etcd.io/etcd/server/v3"
