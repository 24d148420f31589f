{{- define "mqspark.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels that select the pods of a component: (list $ "broker"). */}}
{{- define "mqspark.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ default $root.Chart.Name $root.Values.nameOverride }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "mqspark.labels" -}}
{{- $root := index . 0 -}}
{{ include "mqspark.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end -}}

{{- define "mqspark.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}

{{/* What every pod has: (list $ values-of-the-component). */}}
{{- define "mqspark.pod" -}}
{{- $root := index . 0 -}}
{{- $own := index . 1 -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "mqspark.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{/* Pods of the same labels on different nodes, if there are enough: the labels. */}}
{{- define "mqspark.apart" -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {{- . | nindent 12 }}
{{- end -}}

{{/* The volume of each pod of a StatefulSet: its storage. */}}
{{- define "mqspark.claim" -}}
metadata:
  name: data
spec:
  accessModes: [ReadWriteOnce]
  {{- with .storageClass }}
  storageClassName: {{ . }}
  {{- end }}
  resources:
    requests:
      storage: {{ .size }}
{{- end -}}

{{- define "mqspark.settingsSecret" -}}
{{- default (printf "%s-settings" (include "mqspark.fullname" .)) .Values.auth.existingSecret -}}
{{- end -}}

{{/* host:port;host:port of the pods of a StatefulSet: (list $ "namesrv" replicas port). */}}
{{- define "mqspark.pods" -}}
{{- $root := index . 0 -}}
{{- $name := printf "%s-%s" (include "mqspark.fullname" $root) (index . 1) -}}
{{- $hosts := list -}}
{{- range until (int (index . 2)) -}}
{{- $hosts = append $hosts (printf "%s-%d.%s.%s.svc.%s:%d" $name . $name $root.Release.Namespace $root.Values.clusterDomain (int (index $ 3))) -}}
{{- end -}}
{{- join ";" $hosts -}}
{{- end -}}

{{- define "mqspark.namesrvAddr" -}}
{{- include "mqspark.pods" (list . "namesrv" .Values.namesrv.replicas 9876) -}}
{{- end -}}

{{- define "mqspark.jobServer" -}}
http://{{ include "mqspark.fullname" . }}-jobs.{{ .Release.Namespace }}.svc:8687
{{- end -}}

{{/* A table as lines of TOML. JSON's texts, numbers and truth values are TOML's. */}}
{{- define "mqspark.toml" -}}
{{- range $key, $value := . }}
{{ if contains "." $key }}{{ $key | quote }}{{ else }}{{ $key }}{{ end }} = {{ $value | toJson }}
{{- end }}
{{- end -}}

{{/* Restarts pods when their settings change; not for the password, which is drawn once. */}}
{{- define "mqspark.settingsSum" -}}
{{- $all := (index . 0).Values -}}
checksum/settings: {{ list (index . 1) $all.auth $all.http $all.clusterDomain $all.namesrv.replicas $all.controller $all.jobs.enabled | toJson | sha256sum }}
{{- end -}}
