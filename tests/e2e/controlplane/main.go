// SPDX-License-Identifier: Apache-2.0

// Command controlplane is the Kubernetes control plane that the tests run
// against: one binary that is kube-apiserver, kube-controller-manager or
// kube-scheduler by the name it is called with, or by its first argument.
//
// It decides nothing: the flags are the tests' business.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// command builds the component of a name; nil means that there is none.
func command(name string) *cobra.Command {
	switch name {
	case "kube-apiserver":
		return apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		return controllermanager.NewControllerManagerCommand()
	case "kube-scheduler":
		return scheduler.NewSchedulerCommand()
	}
	return nil
}

func main() {
	name := filepath.Base(os.Args[0])
	root := command(name)
	if root == nil && len(os.Args) > 1 {
		name = os.Args[1]
		os.Args = os.Args[1:]
		root = command(name)
	}
	if root == nil {
		fmt.Fprintln(os.Stderr, "usage: kube-apiserver | kube-controller-manager | kube-scheduler [flags]")
		os.Exit(2)
	}
	os.Exit(cli.Run(root))
}
