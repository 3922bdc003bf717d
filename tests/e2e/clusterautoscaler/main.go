// SPDX-License-Identifier: Apache-2.0

// Command clusterautoscaler asks gpushare's gRPC ports what cluster-autoscaler
// asks, through Go's gRPC and with Kubernetes' own Go types: one loop that
// raises each group to its smallest size, then the expander about one pod.
//
// It is not cluster-autoscaler: it decides nothing beyond that, and prints
// what it was told as JSON.
//
//	clusterautoscaler <folder of certificates> <port> <expander's port> <GiB>...
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	provider = "/clusterautoscaler.cloudprovider.v1.externalgrpc.CloudProvider/"
	expander = "/grpcplugin.Expander/BestOptions"
	memory   = "aliyun.com/gpu-mem"
	deadline = 5 * time.Second // cluster-autoscaler's own
)

// raw is a codec that leaves messages as bytes.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error)   { return *v.(*[]byte), nil }
func (raw) Unmarshal(b []byte, v any) error { *v.(*[]byte) = append([]byte{}, b...); return nil }
func (raw) Name() string                    { return "proto" }

// told is everything that was heard.
type told struct {
	Groups    map[string][2]uint64 // smallest and largest size
	Before    uint64               // target of the first group
	After     uint64               // and once it was raised to its smallest size
	Nodes     map[string]v1.Node   // the template as each generation reads it
	Codes     map[string]string
	Expanders map[string][]string // GiB asked for -> groups that would do
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func ask(to *grpc.ClientConn, method string, in []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	var out []byte
	err := to.Invoke(ctx, method, &in, &out, grpc.ForceCodec(raw{}))
	return out, err
}

func text(n protowire.Number, b []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), b)
}

func number(n protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, n, protowire.VarintType), v)
}

// fields are the values of one message: bytes and varints by number.
func fields(b []byte) (map[protowire.Number][][]byte, map[protowire.Number]uint64) {
	texts, numbers := map[protowire.Number][][]byte{}, map[protowire.Number]uint64{}
	for len(b) > 0 {
		n, kind, size := protowire.ConsumeTag(b)
		b = b[size:]
		switch kind {
		case protowire.BytesType:
			value, _ := protowire.ConsumeBytes(b)
			texts[n] = append(texts[n], value)
		case protowire.VarintType:
			numbers[n], _ = protowire.ConsumeVarint(b)
		}
		b = b[protowire.ConsumeFieldValue(n, kind, b):]
	}
	return texts, numbers
}

func target(to *grpc.ClientConn, group []byte) uint64 {
	_, numbers := fields(must(ask(to, provider+"NodeGroupTargetSize", text(1, group))))
	return numbers[1]
}

func loop(to *grpc.ClientConn, heard *told) (group []byte, template []byte) {
	must(ask(to, provider+"Refresh", nil))
	listed, _ := fields(must(ask(to, provider+"NodeGroups", nil)))
	var smallest uint64
	for i, one := range listed[1] {
		texts, numbers := fields(one)
		heard.Groups[string(texts[1][0])] = [2]uint64{numbers[2], numbers[3]}
		if i == 0 {
			group, smallest = texts[1][0], numbers[2]
		}
	}
	answer, _ := fields(must(ask(to, provider+"NodeGroupTemplateNodeInfo", text(1, group))))
	for name, n := range map[string]protowire.Number{"nodeInfo": 1, "nodeBytes": 2} {
		var node v1.Node
		if err := node.Unmarshal(answer[n][0]); err != nil {
			panic(err)
		}
		heard.Nodes[name] = node
	}
	heard.Before = target(to, group)
	if heard.Before < smallest {
		must(ask(to, provider+"NodeGroupIncreaseSize", append(number(1, smallest-heard.Before), text(2, group)...)))
	}
	heard.After = target(to, group)
	for _, name := range []string{"PricingNodePrice", "PricingPodPrice", "NodeGroupGetOptions"} {
		_, err := ask(to, provider+name, nil)
		heard.Codes[name] = status.Code(err).String()
	}
	return group, answer[2][0]
}

func options(to *grpc.ClientConn, group, template []byte, amount string) []string {
	limits := v1.ResourceList{memory: resource.MustParse(amount)}
	pod := v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "main", Resources: v1.ResourceRequirements{Limits: limits}}}}}
	option := append(text(1, group), text(5, must(pod.Marshal()))...)
	node := append(text(1, group), text(2, template)...)
	best, _ := fields(must(ask(to, expander, append(text(1, option), text(3, node)...))))
	names := []string{}
	for _, one := range best[1] {
		texts, _ := fields(one)
		names = append(names, string(texts[1][0]))
	}
	return names
}

func connect(port string, trust credentials.TransportCredentials) *grpc.ClientConn {
	return must(grpc.NewClient("localhost:"+port, grpc.WithTransportCredentials(trust)))
}

func main() {
	folder := os.Args[1]
	authority := filepath.Join(folder, "ca.crt")
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(must(os.ReadFile(authority)))
	own := filepath.Join(folder, "cluster-autoscaler")
	pair := must(tls.LoadX509KeyPair(own+".crt", own+".key"))
	mutual := &tls.Config{ServerName: "localhost", Certificates: []tls.Certificate{pair}, RootCAs: pool}
	first := connect(os.Args[2], credentials.NewTLS(mutual))
	second := connect(os.Args[3], must(credentials.NewClientTLSFromFile(authority, "")))

	heard := &told{map[string][2]uint64{}, 0, 0, map[string]v1.Node{}, map[string]string{}, map[string][]string{}}
	group, template := loop(first, heard)
	for _, amount := range os.Args[4:] {
		heard.Expanders[amount] = options(second, group, template, amount)
	}
	if err := json.NewEncoder(os.Stdout).Encode(heard); err != nil {
		panic(err)
	}
}
