package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/klog/v2"
	kubeletapp "k8s.io/kubernetes/cmd/kubelet/app"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	cadvisortest "k8s.io/kubernetes/pkg/kubelet/cadvisor/testing"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	"k8s.io/kubernetes/pkg/kubemark"
)

// kubeletFlags is what the harness says about one hollow kubelet.
type kubeletFlags struct {
	kubeconfig            string
	nodeName              string
	nodeIP                string
	nodeLabels            labels
	port                  int
	healthzPort           int
	clientCAFile          string
	tlsCertFile           string
	tlsPrivateKeyFile     string
	leaseDurationSeconds  int
	statusReportFrequency time.Duration
	rootDir               string
}

// runKubelet runs the real kubelet over a fake container runtime: real status
// reports, real Lease, real API with TLS and authentication, no containers.
// It serves until SIGTERM or SIGINT.
func runKubelet() int {
	flags, err := parseKubeletFlags(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 64
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := startKubelet(ctx, flags); err != nil {
		klog.ErrorS(err, "The hollow kubelet did not start", "node", flags.nodeName)
		return 1
	}
	<-ctx.Done()
	return 0
}

func parseKubeletFlags(args []string) (*kubeletFlags, error) {
	f := &kubeletFlags{nodeLabels: labels{}}
	set := flag.NewFlagSet("kubelet", flag.ContinueOnError)
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of the user system:node:NAME (required)")
	set.StringVar(&f.nodeName, "node-name", "", "name of the Node (required)")
	set.StringVar(&f.nodeIP, "node-ip", "", "address to register; that of the default route if empty")
	set.Var(f.nodeLabels, "node-labels", "labels to register, as KEY=VALUE,...")
	set.IntVar(&f.port, "port", 10250, "port of the kubelet's API, on all addresses")
	set.IntVar(&f.healthzPort, "healthz-port", 10248, "port of the bare health check, on loopback; 0 for none")
	set.StringVar(&f.clientCAFile, "client-ca-file", "", "authority for client certificates; none are taken if empty")
	set.StringVar(&f.tlsCertFile, "tls-cert-file", "", "serving certificate; self-signed if empty")
	set.StringVar(&f.tlsPrivateKeyFile, "tls-private-key-file", "", "key of the serving certificate")
	set.IntVar(&f.leaseDurationSeconds, "lease-duration-seconds", 40, "nodeLeaseDurationSeconds")
	set.DurationVar(&f.statusReportFrequency, "status-report-frequency", 5*time.Minute, "nodeStatusReportFrequency")
	set.StringVar(&f.rootDir, "root-dir", "", "folder for all of its files (required)")
	if err := set.Parse(args); err != nil {
		return nil, err
	}
	if f.kubeconfig == "" || f.nodeName == "" || f.rootDir == "" {
		return nil, fmt.Errorf("kubelet: --kubeconfig, --node-name and --root-dir are required")
	}
	return f, nil
}

// startKubelet puts the kubelet together and starts it in the background.
func startKubelet(ctx context.Context, flags *kubeletFlags) error {
	kubeletFlags, config, err := kubeletConfiguration(flags)
	if err != nil {
		return err
	}
	clients, err := newKubeletClients(flags.kubeconfig, config)
	if err != nil {
		return err
	}
	runtime, err := startFakeRuntime(ctx, flags.rootDir)
	if err != nil {
		return err
	}
	hollow := kubemark.NewHollowKubelet(
		kubeletFlags, config,
		clients.api, clients.heartbeat,
		&cadvisortest.Fake{NodeName: flags.nodeName},
		runtime.images, runtime.containers,
		cm.NewStubContainerManager(),
	)
	if err := secureServer(ctx, hollow, clients.api, flags.nodeName); err != nil {
		return err
	}
	server := &options.KubeletServer{KubeletFlags: *kubeletFlags, KubeletConfiguration: *config}
	if err := kubeletapp.RunKubelet(ctx, server, hollow.KubeletDeps); err != nil {
		return err
	}
	return serveHealthz(ctx, flags.healthzPort)
}
