"""BibTeX entries of the work the policies come from (`plait cite POLICY`)."""

from __future__ import annotations

CITATIONS: dict[str, str] = {
    "muri": """@inproceedings{zhao2022muri,
  title = {Multi-Resource Interleaving for Deep Learning Training},
  author = {Zhao, Yihao and Liu, Yuanqiang and Peng, Yanghua and Zhu, Yibo and Liu, Xuanzhe and Jin, Xin},
  booktitle = {Proceedings of the ACM SIGCOMM 2022 Conference},
  year = {2022}
}""",
    "tiresias": """@inproceedings{gu2019tiresias,
  title = {Tiresias: A {GPU} Cluster Manager for Distributed Deep Learning},
  author = {Gu, Juncheng and Chowdhury, Mosharaf and Shin, Kang G. and Zhu, Yibo and Jeon, Myeongjae and
            Qian, Junjie and Liu, Hongqiang and Guo, Chuanxiong},
  booktitle = {16th USENIX Symposium on Networked Systems Design and Implementation (NSDI)},
  year = {2019}
}""",
    "gittins": """@book{gittins2011multi,
  title = {Multi-armed Bandit Allocation Indices},
  author = {Gittins, John and Glazebrook, Kevin and Weber, Richard},
  edition = {2},
  publisher = {Wiley},
  year = {2011}
}""",
    "las": """@article{nuyens2008foreground,
  title = {The Foreground-Background Queue: A Survey},
  author = {Nuyens, Misja and Wierman, Adam},
  journal = {Performance Evaluation},
  volume = {65},
  year = {2008}
}""",
    "schrage": """@article{schrage1968proof,
  title = {A Proof of the Optimality of the Shortest Remaining Processing Time Discipline},
  author = {Schrage, Linus},
  journal = {Operations Research},
  volume = {16},
  number = {3},
  year = {1968}
}""",
    "yarn": """@inproceedings{vavilapalli2013yarn,
  title = {Apache {Hadoop} {YARN}: Yet Another Resource Negotiator},
  author = {Vavilapalli, Vinod Kumar and others},
  booktitle = {4th Annual Symposium on Cloud Computing (SoCC)},
  year = {2013}
}""",
    "themis": """@inproceedings{mahajan2020themis,
  title = {Themis: Fair and Efficient {GPU} Cluster Scheduling},
  author = {Mahajan, Kshiteej and Balasubramanian, Arjun and Singhvi, Arjun and Venkataraman, Shivaram and
            Akella, Aditya and Phanishayee, Amar and Chawla, Shuchi},
  booktitle = {17th USENIX Symposium on Networked Systems Design and Implementation (NSDI)},
  year = {2020}
}""",
    "gavel": """@inproceedings{narayanan2020gavel,
  title = {Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads},
  author = {Narayanan, Deepak and Santhanam, Keshav and Kazhamiaka, Fiodar and Phanishayee, Amar and
            Zaharia, Matei},
  booktitle = {14th USENIX Symposium on Operating Systems Design and Implementation (OSDI)},
  year = {2020}
}""",
    "gandiva": """@inproceedings{xiao2018gandiva,
  title = {Gandiva: Introspective Cluster Scheduling for Deep Learning},
  author = {Xiao, Wencong and others},
  booktitle = {13th USENIX Symposium on Operating Systems Design and Implementation (OSDI)},
  year = {2018}
}""",
    "antman": """@inproceedings{xiao2020antman,
  title = {{AntMan}: Dynamic Scaling on {GPU} Clusters for Deep Learning},
  author = {Xiao, Wencong and Ren, Shiru and Li, Yong and Zhang, Yang and Hou, Pengyang and Li, Zhi and Feng, Yihui and
            Lin, Wei and Jia, Yangqing},
  booktitle = {14th USENIX Symposium on Operating Systems Design and Implementation (OSDI)},
  year = {2020}
}""",
    "drf": """@inproceedings{ghodsi2011drf,
  title = {Dominant Resource Fairness: Fair Allocation of Multiple Resource Types},
  author = {Ghodsi, Ali and Zaharia, Matei and Hindman, Benjamin and Konwinski, Andy and Shenker, Scott and
            Stoica, Ion},
  booktitle = {8th USENIX Symposium on Networked Systems Design and Implementation (NSDI)},
  year = {2011}
}""",
    "pollux": """@inproceedings{qiao2021pollux,
  title = {Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning},
  author = {Qiao, Aurick and Choe, Sang Keun and Subramanya, Suhas Jayaram and Neiswanger, Willie and Ho, Qirong and
            Zhang, Hao and Ganger, Gregory R. and Xing, Eric P.},
  booktitle = {15th USENIX Symposium on Operating Systems Design and Implementation (OSDI)},
  year = {2021}
}""",
    "sia": """@inproceedings{jayaramsubramanya2023sia,
  title = {Sia: Heterogeneity-aware, goodput-optimized {ML}-cluster scheduling},
  author = {Jayaram Subramanya, Suhas and Arfeen, Daiyaan and Lin, Shouxu and Qiao, Aurick and Jia, Zhihao and
            Ganger, Gregory R.},
  booktitle = {29th Symposium on Operating Systems Principles (SOSP)},
  year = {2023}
}""",
    "lucid": """@inproceedings{hu2023lucid,
  title = {Lucid: A Non-intrusive, Scalable and Interpretable Scheduler for Deep Learning Training Jobs},
  author = {Hu, Qinghao and Zhang, Meng and Sun, Peng and Wen, Yonggang and Zhang, Tianwei},
  booktitle = {Proceedings of the 28th ACM International Conference on Architectural Support for Programming Languages
               and Operating Systems (ASPLOS)},
  year = {2023}
}""",
    "helios": """@inproceedings{hu2021helios,
  title = {Characterization and Prediction of Deep Learning Workloads in Large-Scale {GPU} Datacenters},
  author = {Hu, Qinghao and Sun, Peng and Yan, Shengen and Wen, Yonggang and Zhang, Tianwei},
  booktitle = {Proceedings of the International Conference for High Performance Computing, Networking, Storage and
               Analysis (SC)},
  year = {2021}
}""",
    "optimus": """@inproceedings{peng2018optimus,
  title = {Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning Clusters},
  author = {Peng, Yanghua and Bao, Yixin and Chen, Yangrui and Wu, Chuan and Guo, Chuanxiong},
  booktitle = {Proceedings of the Thirteenth EuroSys Conference},
  year = {2018}
}""",
    "netpack": """@inproceedings{zhao2024netpack,
  title = {Training Job Placement in Clusters with Statistical In-Network Aggregation},
  author = {Zhao, Bohan and Xu, Wei and Liu, Shuo and Tian, Yang and Wang, Qiaoling and Wu, Wenfei},
  booktitle = {29th ACM International Conference on Architectural Support for Programming Languages and Operating
               Systems (ASPLOS)},
  year = {2024}
}""",
}
