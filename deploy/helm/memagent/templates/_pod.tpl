{{/* A pod of memagent. Takes a dict: root, component, args, resources. */}}

{{- define "memagent.pod" -}}
metadata:
  labels:
    {{- with .root.Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- include "memagent.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
  annotations:
    {{- with .root.Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    # Pods read settings when they start: new ones restart them.
    checksum/settings: {{ list (include "memagent.environment" .root) .root.Values.secrets | toJson | sha256sum }}
spec:
  automountServiceAccountToken: false
  # The Service's own variables would begin with MEMAGENT_, too.
  enableServiceLinks: false
  {{- with .root.Values.serviceAccountName }}
  serviceAccountName: {{ . }}
  {{- end }}
  {{- with .root.Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    seccompProfile: {type: RuntimeDefault}
  containers:
    - name: memagent
      image: {{ include "memagent.image" .root }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      args: {{ .args | toJson }}
      envFrom: [{configMapRef: {name: {{ include "memagent.fullname" .root }}}}]
      {{- if ne .component "worker" }}
      ports: [{name: http, containerPort: 8420}]
      # The schema is upgraded before the first answer: a large database may take its time.
      startupProbe: {httpGet: {path: /healthz, port: http}, periodSeconds: 5, failureThreshold: 180}
      livenessProbe: {httpGet: {path: /healthz, port: http}, periodSeconds: 10, timeoutSeconds: 5, failureThreshold: 6}
      readinessProbe: {httpGet: {path: /readyz, port: http}, periodSeconds: 5, timeoutSeconds: 5}
      {{- end }}
      resources: {{ .resources | toJson }}
      securityContext: {readOnlyRootFilesystem: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
      volumeMounts:
        - {name: secrets, mountPath: /run/secrets/memagent, readOnly: true}
        - {name: tmp, mountPath: /tmp}
        {{- if eq .component "single" }}
        - {name: data, mountPath: /data}
        {{- end }}
  volumes:
    - name: secrets
      projected:
        sources:
          {{- if include "memagent.secrets" .root | fromJson }}
          - secret: {name: {{ include "memagent.fullname" .root }}}
          {{- end }}
          {{- with .root.Values.existingSecret }}
          {{- if .name }}
          - secret:
              name: {{ .name }}
              items:
                {{- range .settings }}
                - {key: {{ . }}, path: {{ . }}}
                {{- end }}
          {{- end }}
          {{- end }}
    - {name: tmp, emptyDir: {}}
  {{- with .root.Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .root.Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .root.Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
