package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	internalapi "k8s.io/cri-api/pkg/apis"
	remote "k8s.io/cri-client/pkg"
	fakeremote "k8s.io/cri-client/pkg/fake"
)

// fakeRuntime is a container runtime that reports every container it is told
// to start as running, and every image as present.
type fakeRuntime struct {
	containers internalapi.RuntimeService
	images     internalapi.ImageManagerService
}

// startFakeRuntime serves the CRI on a socket in the root folder and connects
// to it, since the kubelet speaks to its runtime over gRPC only.
func startFakeRuntime(ctx context.Context, rootDir string) (*fakeRuntime, error) {
	socket := filepath.Join(rootDir, "cri.sock")
	// A killed predecessor leaves its socket behind.
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	endpoint := "unix://" + socket
	server := fakeremote.NewFakeRemoteRuntime()
	if err := server.Start(endpoint); err != nil {
		return nil, fmt.Errorf("cannot serve the fake runtime on %s: %w", socket, err)
	}
	containers, err := remote.NewRemoteRuntimeServiceBuilder().
		WithEndpoint(endpoint).
		WithConnectionTimeout(15 * time.Second).
		Build(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to the fake runtime: %w", err)
	}
	return &fakeRuntime{containers: containers, images: server.ImageService}, nil
}
