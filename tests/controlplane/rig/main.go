// Command controlplane is one multi-call binary of real Kubernetes components.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if len(os.Args) < 2 {
		usage()
	}
	applet := os.Args[1]
	run, known := applets[applet]
	if !known {
		usage()
	}
	os.Args = append([]string{filepath.Base(applet)}, os.Args[2:]...)
	os.Exit(run())
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: controlplane etcd|kube-apiserver|kube-controller-manager|kubelet|kubectl [flags]")
	os.Exit(64)
}
