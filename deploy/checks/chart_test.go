package checks

import (
	"crypto/x509"
	"encoding/pem"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"helm.sh/helm/v3/pkg/releaseutil"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

const chartDir = deploy + "helm/pubsubd"

// everything turns every option on, and sets what may be set.
const everything = `
image: {repository: registry.example/pubsubd, digest: "sha256:0123456789012345678901234567890123456789012345678901234567890123"}
imagePullSecrets: [{name: pull}]
settings: {history: {age: 2m}, session: {queue: 16}, cors: {origins: [https://app.example]}, trusted_proxies: [10.244.0.0/16], rates: {publishes: {address: 50/s burst 200}}}
drainSeconds: 30
drainDelaySeconds: 5
service: {type: LoadBalancer, port: 8000, annotations: {a: b}}
state: {persistent: true, size: 2Gi, storageClass: fast, seconds: 300}
podDisruptionBudget: {enabled: true}
serviceMonitor: {enabled: true, interval: 5s, labels: {release: prometheus}}
prometheusRule: {enabled: true, labels: {release: prometheus}}
dashboard: {enabled: true}
podAnnotations: {c: d}
podLabels: {e: f}
nodeSelector: {g: h}
tolerations: [{key: i, operator: Exists}]
affinity: {nodeAffinity: {}}
priorityClassName: high
tcp: {enabled: true, port: 9000}
extraEnv: [{name: PUBSUBD_LOG_LEVEL, value: debug}]
extraVolumes: [{name: more, emptyDir: {}}]
extraVolumeMounts: [{name: more, mountPath: /more}]
`

// secured has TLS, a hook and tokens, each with its secret by reference.
const secured = `
settings: {auth: {keys: [/run/secrets/pubsubd/jwks.json]}, hooks: {publish: {url: "http://127.0.0.1:9000/"}}}
secretName: push-keys
hookSecrets: {publish: {name: push-hooks, key: publish}}
tls: {secretName: push-tls}
tcp: {enabled: true}
service: {port: 443}
`

// render is helm template: manifests by kind and name.
func render(t *testing.T, values string) (map[string]string, error) {
	t.Helper()
	chart, err := loader.Load(chartDir)
	require.NoError(t, err)
	given, err := chartutil.ReadValues([]byte(values))
	require.NoError(t, err)
	release := chartutil.ReleaseOptions{Name: "push", Namespace: "web", IsInstall: true}
	all, err := chartutil.ToRenderValues(chart, given, release, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return nil, err
	}
	manifests := map[string]string{}
	for name, text := range files {
		if strings.HasSuffix(name, "NOTES.txt") {
			manifests["notes"] = text
			continue
		}
		for _, manifest := range releaseutil.SplitManifests(text) {
			var head struct {
				Kind     string
				Metadata struct{ Name string }
			}
			require.NoError(t, yaml.Unmarshal([]byte(manifest), &head), manifest)
			if head.Kind != "" {
				manifests[head.Kind+" "+head.Metadata.Name] = manifest
			}
		}
	}
	return manifests, nil
}

func mustRender(t *testing.T, values string) map[string]string {
	t.Helper()
	manifests, err := render(t, values)
	require.NoError(t, err)
	return manifests
}

// decode reads a manifest as the cluster would that refuses unknown fields.
func decode[T any](t *testing.T, manifests map[string]string, name string) T {
	t.Helper()
	require.Contains(t, manifests, name)
	var object T
	text, err := yaml.YAMLToJSONStrict([]byte(manifests[name]))
	require.NoError(t, err, manifests[name])
	strict, err := json.UnmarshalStrict(text, &object) // case counts, as it does for the cluster
	require.NoError(t, err, manifests[name])
	require.Empty(t, strict, manifests[name])
	return object
}

func names(manifests map[string]string) []string {
	var all []string
	for name := range manifests {
		all = append(all, name)
	}
	return all
}

func TestTheChartIsCleanToHelmLint(t *testing.T) {
	for _, values := range []string{"", everything, secured} {
		given, err := chartutil.ReadValues([]byte(values))
		require.NoError(t, err)
		for _, message := range lint.All(chartDir, given, "web", true).Messages {
			require.LessOrEqual(t, message.Severity, support.InfoSev, message.Error())
		}
	}
}

func TestWhatTheChartMakes(t *testing.T) {
	always := []string{"notes", "ConfigMap push-pubsubd", "StatefulSet push-pubsubd", "Service push-pubsubd", "Service push-pubsubd-admin", "NetworkPolicy push-pubsubd"}
	require.ElementsMatch(t, always, names(mustRender(t, "")))
	require.ElementsMatch(t, append(always, "PodDisruptionBudget push-pubsubd", "ServiceMonitor push-pubsubd",
		"PrometheusRule push-pubsubd-alerts", "PrometheusRule push-pubsubd-recording", "ConfigMap push-pubsubd-dashboard"),
		names(mustRender(t, everything)))
}

// Whatever the options: one pod, as nobody, who may do nothing but serve.
func TestThePodHasNoMoreRightsThanItNeeds(t *testing.T) {
	for _, values := range []string{"", everything} {
		set := decode[apps.StatefulSet](t, mustRender(t, values), "StatefulSet push-pubsubd")
		require.EqualValues(t, 1, *set.Spec.Replicas)
		pod := set.Spec.Template.Spec
		require.False(t, *pod.AutomountServiceAccountToken)
		require.False(t, *pod.EnableServiceLinks)
		require.True(t, *pod.SecurityContext.RunAsNonRoot)
		require.EqualValues(t, 65532, *pod.SecurityContext.RunAsUser)
		require.Equal(t, core.SeccompProfileTypeRuntimeDefault, pod.SecurityContext.SeccompProfile.Type)
		require.Len(t, pod.Containers, 1)
		rights := pod.Containers[0].SecurityContext
		require.False(t, *rights.AllowPrivilegeEscalation)
		require.True(t, *rights.ReadOnlyRootFilesystem)
		require.Equal(t, []core.Capability{"ALL"}, rights.Capabilities.Drop)
		require.Empty(t, rights.Capabilities.Add)
		require.False(t, pod.HostNetwork || pod.HostPID || pod.HostIPC)
		require.Contains(t, pod.Containers[0].Resources.Limits, core.ResourceMemory)
	}
}

// The collector's limit is four fifths of the pod's memory, however that is written.
func TestTheCollectorKnowsThePodsMemory(t *testing.T) {
	limit := func(memory string) string {
		manifests := mustRender(t, "resources: {limits: {memory: "+memory+"}}")
		for _, variable := range decode[apps.StatefulSet](t, manifests, "StatefulSet push-pubsubd").Spec.Template.Spec.Containers[0].Env {
			if variable.Name == "GOMEMLIMIT" {
				return variable.Value
			}
		}
		return ""
	}
	for _, memory := range []string{"1Gi", "1.5Gi", "1536Mi", "2000000Ki", "1G", "500M", "900000k", "1Ti", "1073741824", `"1073741824"`} {
		quantity, err := resource.ParseQuantity(strings.Trim(memory, `"`))
		require.NoError(t, err)
		require.Equal(t, strconv.FormatInt(quantity.Value()/5*4+quantity.Value()%5*4/5, 10), limit(memory), memory)
	}
	require.Empty(t, limit("null"), "nothing is known of it")
	_, err := render(t, "resources: {limits: {memory: plenty}}")
	require.ErrorContains(t, err, `resources.limits.memory is "plenty"`)
}

func TestThePodIsAskedOnTheAdminPort(t *testing.T) {
	container := decode[apps.StatefulSet](t, mustRender(t, ""), "StatefulSet push-pubsubd").Spec.Template.Spec.Containers[0]
	require.Equal(t, "/readyz", container.ReadinessProbe.HTTPGet.Path)
	require.Equal(t, "admin", container.ReadinessProbe.HTTPGet.Port.String())
	require.Equal(t, "/livez", container.LivenessProbe.HTTPGet.Path)
	require.Equal(t, "admin", container.LivenessProbe.HTTPGet.Port.String())
	require.Contains(t, container.Ports, core.ContainerPort{Name: "admin", ContainerPort: 8081})
}

// settings are those that the pod's daemon gets.
func settings(t *testing.T, manifests map[string]string) string {
	t.Helper()
	return decode[core.ConfigMap](t, manifests, "ConfigMap push-pubsubd").Data["pubsubd.yaml"]
}

// A daemon starts with the settings that the chart makes; only where it listens is
// another.
func TestTheDaemonTakesTheSettings(t *testing.T) {
	for _, values := range []string{"", everything} {
		file := filepath.Join(t.TempDir(), "pubsubd.yaml")
		text := settings(t, mustRender(t, values))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		d := serve(t, "--config", file, "--listen-tcp=127.0.0.1:0")
		require.Equal(t, "ok\n", d.do("GET", d.admin+"/readyz", ""))
	}
}

// With authorisation the chart does not open the daemon to whoever can connect. Secrets come
// by reference, and calls out need a rule.
func TestTheChartWithAuthorisation(t *testing.T) {
	manifests := mustRender(t, `
settings: {auth: {anonymous: '[{"topics":["public.>"],"allow":["subscribe"]}]'}, hosts: [push.app.example]}
secretName: push-keys
networkPolicy: {egress: [{to: [{ipBlock: {cidr: 203.0.113.7/32}}], ports: [{port: 443}]}]}
`)
	var s struct{ Insecure, Plaintext bool }
	text := settings(t, manifests)
	require.NoError(t, yaml.Unmarshal([]byte(text), &s))
	require.False(t, s.Insecure)
	require.True(t, s.Plaintext)
	file := filepath.Join(t.TempDir(), "pubsubd.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	path, err := binary()
	require.NoError(t, err)
	said, err := exec.CommandContext(t.Context(), path, "config", "check", "--config", file).CombinedOutput()
	require.NoError(t, err, string(said))

	pod := decode[apps.StatefulSet](t, manifests, "StatefulSet push-pubsubd").Spec.Template.Spec
	require.Equal(t, "push-keys", pod.Volumes[1].Secret.SecretName)
	require.EqualValues(t, 0o440, *pod.Volumes[1].Secret.DefaultMode)
	mounts := pod.Containers[0].VolumeMounts
	require.Contains(t, mounts, core.VolumeMount{Name: "secrets", MountPath: "/run/secrets/pubsubd", ReadOnly: true})
	require.Len(t, decode[networking.NetworkPolicy](t, manifests, "NetworkPolicy push-pubsubd").Spec.Egress, 1)
	open := mustRender(t, "{settings: {auth: {keys: [a]}}, networkPolicy: {enabled: false}, openToTheCluster: true}")
	require.Contains(t, open["notes"], "with the rights of settings.auth")
}

// The pod is not killed while it drains, or closes its log.
func TestThePodOutlastsTheDrainAndTheState(t *testing.T) {
	for values, window := range map[string]string{"": "10s", everything: "30s"} {
		manifests := mustRender(t, values)
		var s struct {
			Insecure bool
			Drain    struct{ Window string }
			Listen   struct{ Public, Admin string }
		}
		require.NoError(t, yaml.Unmarshal([]byte(settings(t, manifests)), &s))
		require.Equal(t, window, s.Drain.Window)
		require.Equal(t, ":8080", s.Listen.Public)
		require.True(t, s.Insecure, "who may connect is the NetworkPolicy's")
		pod := decode[apps.StatefulSet](t, manifests, "StatefulSet push-pubsubd").Spec.Template.Spec
		require.EqualValues(t, map[string]int{"10s": 130, "30s": 335}[window], *pod.TerminationGracePeriodSeconds)
		start := pod.Containers[0].StartupProbe
		require.Equal(t, "/livez", start.HTTPGet.Path)
		require.Equal(t, "admin", start.HTTPGet.Port.String())
		require.EqualValues(t, map[string]int{"10s": 120, "30s": 300}[window], start.PeriodSeconds*start.FailureThreshold)
	}
}

// The log is on a volume of its own, which is larger than the log may get.
func TestTheLogIsWhereItIsAskedFor(t *testing.T) {
	set := decode[apps.StatefulSet](t, mustRender(t, "state: {persistent: false}"), "StatefulSet push-pubsubd")
	require.Empty(t, set.Spec.VolumeClaimTemplates)
	require.NotNil(t, set.Spec.Template.Spec.Volumes[1].EmptyDir)

	manifests := mustRender(t, "")
	set = decode[apps.StatefulSet](t, manifests, "StatefulSet push-pubsubd")
	container := set.Spec.Template.Spec.Containers[0]
	require.Contains(t, container.Env, core.EnvVar{Name: "PUBSUBD_STORE_DIR", Value: "/var/lib/pubsubd/store"})
	require.Contains(t, container.VolumeMounts, core.VolumeMount{Name: "state", MountPath: "/var/lib/pubsubd"})
	var s struct{ Store struct{ Bytes string } }
	require.NoError(t, yaml.Unmarshal([]byte(settings(t, manifests)), &s))
	bound, err := resource.ParseQuantity(strings.TrimSuffix(s.Store.Bytes, "B"))
	require.NoError(t, err)
	require.Less(t, bound.Value(), set.Spec.VolumeClaimTemplates[0].Spec.Resources.Requests.Storage().Value())

	set = decode[apps.StatefulSet](t, mustRender(t, everything), "StatefulSet push-pubsubd")
	require.Len(t, set.Spec.Template.Spec.Volumes, 2)
	require.Len(t, set.Spec.VolumeClaimTemplates, 1)
	claim := set.Spec.VolumeClaimTemplates[0].Spec
	require.Equal(t, "fast", *claim.StorageClassName)
	require.Equal(t, "2Gi", claim.Resources.Requests.Storage().String())
}

func TestWithoutALogThereIsNoVolume(t *testing.T) {
	manifests := mustRender(t, "state: {enabled: false}")
	set := decode[apps.StatefulSet](t, manifests, "StatefulSet push-pubsubd")
	require.Empty(t, set.Spec.VolumeClaimTemplates)
	require.Len(t, set.Spec.Template.Spec.Volumes, 1)
	container := set.Spec.Template.Spec.Containers[0]
	require.Len(t, container.VolumeMounts, 1)
	for _, variable := range container.Env {
		require.Equal(t, "GOMEMLIMIT", variable.Name)
	}
	require.NotContains(t, settings(t, manifests), "store")
}

// Helm never sees a secret. The daemon finds each where the pod has it.
func TestSecretsComeByReference(t *testing.T) {
	manifests := mustRender(t, secured)
	pod := decode[apps.StatefulSet](t, manifests, "StatefulSet push-pubsubd").Spec.Template.Spec
	secret := "PUBSUBD_HOOKS_PUBLISH_SECRET"
	require.Contains(t, pod.Containers[0].Env, core.EnvVar{Name: secret, ValueFrom: &core.EnvVarSource{
		SecretKeyRef: &core.SecretKeySelector{LocalObjectReference: core.LocalObjectReference{Name: "push-hooks"}, Key: "publish"},
	}})
	mounts, volumes := map[string]string{}, map[string]string{}
	for _, m := range pod.Containers[0].VolumeMounts {
		mounts[m.Name] = m.MountPath
	}
	for _, v := range pod.Volumes {
		if v.Secret != nil {
			volumes[v.Name] = v.Secret.SecretName
			require.EqualValues(t, 0o440, *v.Secret.DefaultMode)
		}
	}
	require.Equal(t, map[string]string{"secrets": "push-keys", "tls": "push-tls"}, volumes)

	// A daemon starts with the settings once the files are there.
	text, dir := settings(t, manifests), t.TempDir()
	for _, volume := range []string{"secrets", "tls"} {
		require.Contains(t, text, mounts[volume]+"/")
	}
	text = strings.NewReplacer(mounts["tls"]+"/", dir+"/", mounts["secrets"]+"/", dir+"/").Replace(text)
	pair := httptest.NewTLSServer(nil)
	defer pair.Close()
	certificate := pair.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	require.NoError(t, err)
	for name, content := range map[string][]byte{
		"tls.crt":       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]}),
		"tls.key":       pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		"jwks.json":     []byte(`{"keys":[{"kty":"oct","kid":"a","alg":"HS256","k":"` + strings.Repeat("a", 43) + `"}]}`),
		"settings.yaml": []byte(text),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	t.Setenv(secret, strings.Repeat("s", 24))
	d := serve(t, "--config", filepath.Join(dir, "settings.yaml"), "--listen-tcp=127.0.0.1:0")
	require.Equal(t, "ok\n", d.do("GET", d.admin+"/readyz", ""))

	_, err = render(t, `settings: {hooks: {events: {url: "http://127.0.0.1:9000/"}}}`)
	require.ErrorContains(t, err, "name the entry of a Secret in hookSecrets.events")
}

func TestThePortsOfTheChart(t *testing.T) {
	for values, want := range map[string]map[string]int32{"": {"http": 80}, everything: {"http": 8000, "tcp": 9000}, secured: {"https": 443, "tcp": 8082}} {
		manifests := mustRender(t, values)
		got := map[string]int32{}
		for _, port := range decode[core.Service](t, manifests, "Service push-pubsubd").Spec.Ports {
			got[port.Name] = port.Port
		}
		require.Equal(t, want, got)
		container := decode[apps.StatefulSet](t, manifests, "StatefulSet push-pubsubd").Spec.Template.Spec.Containers[0]
		tcp := core.ContainerPort{Name: "tcp", ContainerPort: 8082}
		clients := decode[networking.NetworkPolicy](t, manifests, "NetworkPolicy push-pubsubd").Spec.Ingress[0].Ports
		if _, hasTCP := want["tcp"]; hasTCP {
			require.Contains(t, container.Ports, tcp)
			require.Contains(t, settings(t, manifests), "tcp: :8082")
			require.Len(t, clients, 2)
			require.Equal(t, "tcp", clients[1].Port.String())
		} else {
			require.NotContains(t, container.Ports, tcp)
			require.NotContains(t, settings(t, manifests), "tcp")
			require.Len(t, clients, 1)
		}
	}
	require.Contains(t, mustRender(t, secured)["notes"], "pubsubd is at https://")
}

func TestMoreVariablesAndVolumes(t *testing.T) {
	pod := decode[apps.StatefulSet](t, mustRender(t, everything), "StatefulSet push-pubsubd").Spec.Template.Spec
	require.Contains(t, pod.Containers[0].Env, core.EnvVar{Name: "PUBSUBD_LOG_LEVEL", Value: "debug"})
	require.Contains(t, pod.Containers[0].VolumeMounts, core.VolumeMount{Name: "more", MountPath: "/more"})
	require.Contains(t, pod.Volumes, core.Volume{Name: "more", VolumeSource: core.VolumeSource{EmptyDir: &core.EmptyDirVolumeSource{}}})
}

// The admin port is on no Service that is reached from outside, and each port is
// for its own peers.
func TestWhoMayConnect(t *testing.T) {
	manifests := mustRender(t, everything)
	public := decode[core.Service](t, manifests, "Service push-pubsubd")
	for _, port := range public.Spec.Ports {
		require.NotEqual(t, "admin", port.TargetPort.String())
	}
	admin := decode[core.Service](t, manifests, "Service push-pubsubd-admin")
	require.Equal(t, core.ClusterIPNone, admin.Spec.ClusterIP)

	spec := decode[networking.NetworkPolicy](t, manifests, "NetworkPolicy push-pubsubd").Spec
	require.ElementsMatch(t, []networking.PolicyType{"Ingress", "Egress"}, spec.PolicyTypes)
	require.Empty(t, spec.Egress)
	require.Len(t, spec.Ingress, 2)
	for _, rule := range spec.Ingress {
		require.NotEmpty(t, rule.From, "a rule for nobody in particular is one for everyone")
		require.NotEmpty(t, rule.Ports, "a rule for no port in particular is one for all")
	}
	require.Equal(t, "http", spec.Ingress[0].Ports[0].Port.String())
	require.Len(t, spec.Ingress[1].Ports, 1)
	require.Equal(t, "admin", spec.Ingress[1].Ports[0].Port.String())

	nobody := mustRender(t, "networkPolicy: {clients: [], monitoring: []}")
	require.Empty(t, decode[networking.NetworkPolicy](t, nobody, "NetworkPolicy push-pubsubd").Spec.Ingress)
}

// Nobody opens the daemon to everyone by leaving something out.
func TestTheChartIsOpenedOnPurposeOnly(t *testing.T) {
	_, err := render(t, "networkPolicy: {enabled: false}")
	require.ErrorContains(t, err, "openToTheCluster")
	manifests := mustRender(t, "{networkPolicy: {enabled: false}, openToTheCluster: true}")
	require.NotContains(t, manifests, "NetworkPolicy push-pubsubd")
	require.Contains(t, manifests["notes"], "EVERYONE")
}

func TestMistypedValuesAreRefused(t *testing.T) {
	for _, values := range []string{
		"replicas: 2", "settings: {listen: {public: ':80'}}", "settings: {insecure: false}", "settings: {plaintext: true}", "drainSeconds: 10s", "state: {seconds: 0}", "settings: {store: {dir: /tmp}}",
		"networkPolicy: {client: []}", "image: {digest: latest}",
		"settings: {hystory: {age: 2m}}", "settings: {history: {agee: 2m}}", "settings: {history.age: 2m}", "settings: {history: {age: 2}}",
		"settings: {topics: {chat: {patern: chat.*}}}", "settings: {rates: {misses: {principal: 1/s}}}", "settings: {rates: {polls: {all: off}}}",
		"settings: {hooks: {publish: {secret: in-clear-text-in-a-configmap}}}", "hookSecrets: {publish: {name: push-hooks}}", "hookSecrets: {other: {}}",
		"tls: {cert: a}", "tcp: {port: 0}", "extraEnv: [{value: a}]", "extraVolumeMounts: [{name: a}]", "state: {enable: true}",
	} {
		_, err := render(t, values)
		require.ErrorContains(t, err, "values don't meet the specifications of the schema", values)
	}
}

func TestTheOptionalManifestsAreWhole(t *testing.T) {
	manifests := mustRender(t, everything)
	budget := decode[policy.PodDisruptionBudget](t, manifests, "PodDisruptionBudget push-pubsubd")
	require.Equal(t, "0", budget.Spec.MaxUnavailable.String())

	board := decode[core.ConfigMap](t, manifests, "ConfigMap push-pubsubd-dashboard").Data["pubsubd.json"]
	shipped, err := os.ReadFile(deploy + "grafana/pubsubd.json")
	require.NoError(t, err)
	require.JSONEq(t, string(shipped), board)

	for _, name := range []string{"alerts", "recording"} {
		var manifest, file struct {
			Spec   struct{ Groups []any }
			Groups []any
		}
		require.NoError(t, yaml.Unmarshal([]byte(manifests["PrometheusRule push-pubsubd-"+name]), &manifest))
		text, err := os.ReadFile(deploy + "prometheus/" + name + ".yaml")
		require.NoError(t, err)
		require.NoError(t, yaml.Unmarshal(text, &file))
		require.NotEmpty(t, manifest.Spec.Groups)
		require.Equal(t, file.Groups, manifest.Spec.Groups)
	}

	var monitor struct {
		Spec struct {
			Selector  struct{ MatchLabels map[string]string }
			Endpoints []struct {
				Port, Path  string
				Relabelings []map[string]string
			}
		}
	}
	require.NoError(t, yaml.Unmarshal([]byte(manifests["ServiceMonitor push-pubsubd"]), &monitor))
	require.Equal(t, "admin", monitor.Spec.Endpoints[0].Port)
	require.Equal(t, []map[string]string{{"targetLabel": "job", "replacement": "pubsubd"}}, monitor.Spec.Endpoints[0].Relabelings)
	admin := decode[core.Service](t, manifests, "Service push-pubsubd-admin")
	require.Subset(t, admin.Labels, monitor.Spec.Selector.MatchLabels)
	require.NotSubset(t, decode[core.Service](t, manifests, "Service push-pubsubd").Labels, monitor.Spec.Selector.MatchLabels)
}
