package main

import (
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
)

// kubeletClients are the two clients of a kubelet: heartbeats must not wait
// behind other requests.
type kubeletClients struct {
	api       *kubernetes.Clientset
	heartbeat *kubernetes.Clientset
}

// newKubeletClients makes the clients as cmd/kubelet does.
func newKubeletClients(kubeconfig string, config *kubeletconfig.KubeletConfiguration) (*kubeletClients, error) {
	base, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	base.UserAgent = "hollow-kubelet"
	base.ContentType = "application/vnd.kubernetes.protobuf"
	base.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	base.QPS = float32(config.KubeAPIQPS)
	base.Burst = int(config.KubeAPIBurst)
	api, err := kubernetes.NewForConfig(base)
	if err != nil {
		return nil, err
	}

	// The timeout is the smaller of the update frequency and the lease
	// duration; there is no limit to the rate.
	beat := rest.CopyConfig(base)
	beat.Timeout = min(
		config.NodeStatusUpdateFrequency.Duration,
		time.Duration(config.NodeLeaseDurationSeconds)*time.Second,
	)
	beat.QPS = -1
	heartbeat, err := kubernetes.NewForConfig(beat)
	if err != nil {
		return nil, err
	}
	return &kubeletClients{api: api, heartbeat: heartbeat}, nil
}
