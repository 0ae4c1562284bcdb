// Command cluster runs one component of a Kubernetes cluster, chosen by its first argument.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"
	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func kubernetes(command *cobra.Command) { os.Exit(cli.Run(command)) }

var components = map[string]func(){
	"coredns":                 coremain.Run,
	"kube-apiserver":          func() { kubernetes(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() { kubernetes(controllermanager.NewControllerManagerCommand()) },
	"kube-proxy":              func() { kubernetes(proxy.NewProxyCommand()) },
	"kube-scheduler":          func() { kubernetes(scheduler.NewSchedulerCommand()) },
	"kubelet":                 func() { kubernetes(kubelet.NewKubeletCommand(context.Background())) },
}

func main() {
	if len(os.Args) < 2 || components[os.Args[1]] == nil {
		names := strings.Join(slices.Sorted(maps.Keys(components)), " | ")
		fmt.Fprintf(os.Stderr, "usage: cluster %s [flags]\n", names)
		os.Exit(2)
	}
	run := components[os.Args[1]]
	os.Args = os.Args[1:] // each component reads its name and flags as if it were its own program
	run()
}
