package main

import (
	"context"
	"net"
	"net/http"
	"strconv"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	kubeletapp "k8s.io/kubernetes/cmd/kubelet/app"
	"k8s.io/kubernetes/pkg/kubemark"
)

// secureServer gives the kubelet's API what kubemark leaves out: TLS, with a
// self-signed certificate unless one was given, and authentication and
// authorization by the API server, so that an anonymous request gets a 401.
func secureServer(ctx context.Context, hollow *kubemark.HollowKubelet, client kubernetes.Interface, nodeName string) error {
	tls, err := kubeletapp.InitializeTLS(ctx, hollow.KubeletFlags, hollow.KubeletConfiguration)
	if err != nil {
		return err
	}
	auth, reloadClientCA, err := kubeletapp.BuildAuth(types.NodeName(nodeName), client, *hollow.KubeletConfiguration)
	if err != nil {
		return err
	}
	reloadClientCA(ctx.Done())
	hollow.KubeletDeps.TLSOptions = tls
	hollow.KubeletDeps.Auth = auth
	return nil
}

// serveHealthz serves the health check that tells only that the process
// answers. On a real node cmd/kubelet serves it, not the kubelet package.
func serveHealthz(ctx context.Context, port int) error {
	if port == 0 {
		return nil
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	healthz.InstallHandler(mux)
	server := &http.Server{Handler: mux}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go func() {
		if err := server.Serve(listener); err != http.ErrServerClosed {
			klog.ErrorS(err, "The health check is not served any more")
		}
	}()
	return nil
}
