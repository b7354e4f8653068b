package charts

// everything sets nearly all that the agent's chart knows.
const everything = `
cluster: prod
queue:
  urlSecret: {name: tendril-queue, key: uri}
  listenUrlSecret: {name: tendril-listen, key: session-uri}
  tokenSecret: tendril-token
  tokenSecretKey: cluster-token
identity: {existingSecret: tendril-identity, key: age.txt}
replicas: 3
slots: 4
drainTimeout: 45m
cancelGrace: 1m
logFormat: text
logLevel: debug
policy:
  repos: ["https://github.com/acme/**", "git@git.corp.example:infra/*"]
  operations: [plan, apply, inspect]
  approval: destructive
  modules: ["**"]
  checkRanges: ["10.0.0.0/8"]
  programs: [/opt/acme/provision.sh]
  hook: [/bin/sh, -c, "exit 0"]
  hookTimeout: 30s
  plainSensitive: true
  requesterKeys: ["acme/**: age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"]
state:
  default: managed
  backend: s3
  config:
    s3: {bucket: states, key: "{workspace_id}.tfstate", region: eu-central-1}
git:
  hosts:
    github.com:
      secret: {name: github-app, appKey: key.pem}
      appId: 12345
      appInstallationId: "67890"
      repos: ["https://github.com/modules/*"]
    git.corp.example:8443:
      secret: {name: corp-git, sshKey: id_ed25519}
      knownHosts: |
        git.corp.example ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0lZ0m5pGHu9b8b6Xe2YhVqS2kTq3Jc8m1Qy8aPzX2k
credentials:
  - workspace: acme/*
    secret: acme-cloud
    envFile: env
    files: {GOOGLE_APPLICATION_CREDENTIALS: key.json}
  - workspace: "**"
    awsRoleArn: arn:aws:iam::123456789012:role/preview
ca: {configMap: corporate-ca, key: bundle.pem}
config:
  credentials_default: true
  queue: {poll_interval: 2s}
  engine: {kind: tofu, version: 1.9.0, install: false, provider_mirror: https://mirror.example/, provider_direct: true}
  run: {timeout: 4h, timeouts: {plan: 30m}, log_limit: 128MiB, pass_env: [ACME_REGION], disk_wait: 5m}
  git: {timeout: 5m}
  manual: {notification_webhook: "https://hooks.example.com/x", notification_kind: slack}
  cache: {limit: 60GiB, keep: 24h, min_free: "0"}
image: {tag: 1.2.3, pullPolicy: Always}
imagePullSecrets: [{name: registry}]
labels: {team: platform}
podLabels: {azure.workload.identity/use: "true"}
podAnnotations: {example.com/scrub: "yes"}
serviceAccount:
  name: tendril-agent
  annotations:
    eks.amazonaws.com/role-arn: arn:aws:iam::123456789012:role/tendril
    iam.gke.io/gcp-service-account: tendril@acme.iam.gserviceaccount.com
rbac:
  rules: [{apiGroups: [""], resources: [secrets], resourceNames: [tfstate], verbs: [get, update]}]
persistence:
  size: 100Gi
  storageClass: fast
  accessMode: ReadWriteOncePod
  annotations: {backup.example.com/keep: "7"}
  retention: {whenScaled: Delete}
tmp: {sizeLimit: 5Gi}
resources:
  requests: {cpu: "1", memory: 2Gi}
  limits: {memory: 6Gi}
terminationGracePeriodSeconds: 7200
updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 1}}
podDisruptionBudget: {maxUnavailable: 34%}
networkPolicy:
  metricsFrom: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]
  strict: true
  egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0, except: [169.254.169.254/32]}}], ports: [{port: 443, protocol: TCP}]}]
serviceMonitor:
  enabled: true
  labels: {release: prometheus}
  interval: 1m
  relabelings: [{action: labeldrop, regex: pod}]
  metricRelabelings: [{action: drop, sourceLabels: [__name__], regex: go_.*}]
probes:
  startup: {failureThreshold: 120}
extraEnv:
  - {name: HTTPS_PROXY, value: "http://proxy.example:3128"}
  - {name: ACME_REGION, valueFrom: {configMapKeyRef: {name: region, key: region}}}
extraEnvFrom: [{secretRef: {name: aws}}]
extraVolumes: [{name: policy, configMap: {name: rego}}]
extraVolumeMounts: [{name: policy, mountPath: /etc/policy, readOnly: true}]
nodeSelector: {kubernetes.io/arch: amd64}
tolerations: [{key: infra, operator: Exists}]
affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app.kubernetes.io/name: tendril}}}}]}}
topologySpreadConstraints: [{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app.kubernetes.io/name: tendril}}}]
priorityClassName: infra
runtimeClassName: gvisor
`
