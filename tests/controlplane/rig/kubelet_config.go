package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/kubernetes/cmd/kubelet/app/options"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubemark"
)

// labels is a flag of the form KEY=VALUE,...
type labels map[string]string

func (l labels) String() string {
	return fmt.Sprint(map[string]string(l))
}

func (l labels) Set(value string) error {
	if value == "" {
		return nil
	}
	for _, pair := range strings.Split(value, ",") {
		key, val, found := strings.Cut(pair, "=")
		if !found {
			return fmt.Errorf("label %q is not KEY=VALUE", pair)
		}
		l[key] = val
	}
	return nil
}

// kubeletConfiguration starts from kubemark's and changes what it has not got:
// authentication as on a real node, the lease duration, and folders that one
// can find again.
func kubeletConfiguration(flags *kubeletFlags) (*options.KubeletFlags, *kubeletconfig.KubeletConfiguration, error) {
	folders := map[string]string{}
	for _, name := range []string{"pki", "pod-logs", "static-pods", "tmp"} {
		folders[name] = filepath.Join(flags.rootDir, name)
		if err := os.MkdirAll(folders[name], 0o755); err != nil {
			return nil, nil, err
		}
	}
	// Kubemark makes temporary folders that it never removes: here they are
	// removed with the root folder.
	if err := os.Setenv("TMPDIR", folders["tmp"]); err != nil {
		return nil, nil, err
	}

	f, c := kubemark.GetHollowKubeletConfig(&kubemark.HollowKubeletOptions{
		NodeName:    flags.nodeName,
		KubeletPort: flags.port,
		MaxPods:     110,
		NodeLabels:  flags.nodeLabels,
	})
	f.NodeIP = flags.nodeIP
	f.RootDirectory = flags.rootDir
	f.CertDirectory = folders["pki"]
	c.PodLogsDir = folders["pod-logs"]
	c.StaticPodPath = folders["static-pods"]
	c.NodeLeaseDurationSeconds = int32(flags.leaseDurationSeconds)
	c.NodeStatusReportFrequency.Duration = flags.statusReportFrequency
	c.TLSCertFile = flags.tlsCertFile
	c.TLSPrivateKeyFile = flags.tlsPrivateKeyFile
	c.Authentication.Anonymous.Enabled = false
	c.Authentication.Webhook.Enabled = true
	c.Authentication.X509.ClientCAFile = flags.clientCAFile
	c.Authorization.Mode = kubeletconfig.KubeletAuthorizationModeWebhook
	return f, c, nil
}
